/* config_worker.c - workers and the models they serve. */
#include "ledger/config_impl.h"

#include <stdio.h>

#define WORKER_JSON                                                                                \
    "json_build_object('worker_id', w.worker_id, 'url', w.url, 'engine', g.name, 'draining', "     \
    "w.draining, 'removed', w.removed, 'models', (SELECT COALESCE(json_agg(m.name ORDER BY "       \
    "m.name), '[]') FROM worker_model x JOIN model m USING (model_id) WHERE x.worker_id = "        \
    "w.worker_id), 'added_at', w.added_at)"
#define WORKER_FROM " FROM worker w JOIN engine g USING (engine) "

static bool worker_models_set(const struct config *c, struct str worker_id,
                              const struct str *models, size_t n, struct err *e)
{
    struct str params[2] = {worker_id};
    size_t i;

    if (!pg_exec(c->pg, "DELETE FROM worker_model WHERE worker_id = $1::int", params, 1, e)) {
        return false;
    }
    for (i = 0; i < n; i++) {
        if (models[i].n == 0 || models[i].n > 256) {
            return err_set(e, ERR_INPUT, "a model's name has 1 to 256 bytes");
        }
        params[1] = models[i];
        if (!pg_exec(c->pg, CONFIG_MODEL_MAKE, &models[i], 1, e) ||
            !pg_exec(c->pg,
                     "INSERT INTO worker_model (worker_id, model_id) SELECT $1::int, model_id FROM "
                     "model WHERE name = $2 ON CONFLICT DO NOTHING",
                     params, 2, e)) {
            return false;
        }
    }
    return true;
}

static bool worker_answer(const struct config *c, struct str worker_id, const char *what,
                          struct buf *out, struct err *e)
{
    size_t before = out->len;

    return config_json(c, "SELECT " WORKER_JSON WORKER_FROM "WHERE w.worker_id = $1::int",
                       &worker_id, 1, out, e) &&
           config_audit(c, what, worker_id, str_of(NULL, 0),
                        str_of((const char *)out->p + out->off + before, out->len - before), e);
}

bool config_worker_add(const struct config *c, struct str url, enum engine_kind engine,
                       const struct str *models, size_t n_models, struct buf *out, struct err *e)
{
    char number[CONFIG_NUMBER_BYTES];
    char id_text[CONFIG_NUMBER_BYTES];
    const struct str params[] = {url, config_text(engine, number)};
    size_t before = out->len;
    int64_t id = 0;
    bool ok;

    if (url.n < 8 || url.n > 127) {
        return err_set(e, ERR_INPUT, "a worker's URL has 8 to 127 bytes");
    }
    if (n_models > CONFIG_WORKER_MODELS_MAX) {
        return err_set(e, ERR_INPUT, "a worker serves at most %d models", CONFIG_WORKER_MODELS_MAX);
    }
    if (!config_begin(c, e)) {
        return false;
    }
    ok = config_number(c,
                       "INSERT INTO worker (url, engine) VALUES ($1, $2::smallint) ON CONFLICT "
                       "(url) DO UPDATE SET engine = EXCLUDED.engine, draining = false, removed = "
                       "false RETURNING worker_id",
                       params, 2, &id, e) &&
         worker_models_set(c, config_text(id, id_text), models, n_models, e) &&
         worker_answer(c, str_c(id_text), "worker.add", out, e);
    ok = config_end(c, ok, e);
    if (!ok) {
        buf_truncate(out, before);
    }
    return ok;
}

static bool worker_find(const struct config *c, struct str which, int64_t *id, struct err *e)
{
    uint64_t number;
    bool is_number = str_u64(which, &number) && number <= INT32_MAX;

    return config_number(c,
                         is_number ? "SELECT worker_id FROM worker WHERE worker_id = $1::int"
                                   : "SELECT worker_id FROM worker WHERE url = $1",
                         &which, 1, id, e) &&
           (*id != 0 || err_set(e, ERR_NOT_FOUND, "there is no worker " STR_FMT, STR_ARG(which)));
}

static bool worker_change(const struct config *c, struct str which, const char *sql,
                          const char *what, struct buf *out, struct err *e)
{
    char text[CONFIG_NUMBER_BYTES];
    struct str param;
    size_t before = out->len;
    int64_t id = 0;
    bool ok;

    if (!config_begin(c, e)) {
        return false;
    }
    ok = worker_find(c, which, &id, e);
    if (ok) {
        param = config_text(id, text);
        ok = pg_exec(c->pg, sql, &param, 1, e) && worker_answer(c, param, what, out, e);
    }
    ok = config_end(c, ok, e);
    if (!ok) {
        buf_truncate(out, before);
    }
    return ok;
}

bool config_worker_drain(const struct config *c, struct str which, bool draining, struct buf *out,
                         struct err *e)
{
    return draining ? worker_change(c, which,
                                    "UPDATE worker SET draining = true WHERE worker_id = $1::int",
                                    "worker.drain", out, e)
                    : worker_change(c, which,
                                    "UPDATE worker SET draining = false WHERE worker_id = $1::int",
                                    "worker.undrain", out, e);
}

bool config_worker_remove(const struct config *c, struct str which, struct buf *out, struct err *e)
{
    return worker_change(c, which, "UPDATE worker SET removed = true WHERE worker_id = $1::int",
                         "worker.remove", out, e);
}

bool config_worker_list(const struct config *c, struct buf *out, struct err *e)
{
    return config_json(c,
                       "SELECT json_build_object('data', COALESCE(json_agg(" WORKER_JSON
                       " ORDER BY w.worker_id), '[]'))" WORKER_FROM,
                       NULL, 0, out, e);
}

bool config_model_set(const struct config *c, struct str model, int32_t context, int32_t output_max,
                      struct buf *out, struct err *e)
{
    char numbers[2][CONFIG_NUMBER_BYTES];
    const struct str params[] = {model, config_text(context, numbers[0]),
                                 config_text(output_max, numbers[1])};
    size_t before = out->len;
    bool ok;

    if (!config_begin(c, e)) {
        return false;
    }
    ok = config_json(c,
                     "UPDATE model SET context = CASE WHEN $2::int < 0 THEN context ELSE $2::int "
                     "END, output_max = CASE WHEN $3::int < 0 THEN output_max ELSE $3::int END "
                     "WHERE name = $1 RETURNING json_build_object('model_id', model_id, 'model', "
                     "name, 'context', context, 'output_max', output_max)",
                     params, 3, out, e);
    if (!ok && e->code == ERR_NOT_FOUND) {
        err_clear(e);
        (void)err_set(e, ERR_NOT_FOUND, "there is no model named " STR_FMT, STR_ARG(model));
    }
    ok = ok && config_audit(c, "model.set", model, str_of(NULL, 0),
                            str_of((const char *)out->p + out->off + before, out->len - before), e);
    ok = config_end(c, ok, e);
    if (!ok) {
        buf_truncate(out, before);
    }
    return ok;
}
