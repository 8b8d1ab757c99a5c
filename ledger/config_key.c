/* config_key.c - keys: made with their project and user, listed, revoked. */
#include "ledger/config_impl.h"

#include <stdio.h>

/* The id of a named thing of the tenant, made when absent. */
static bool named_id(const struct config *c, const char *sql, int64_t tenant_id, struct str name,
                     int32_t *out, struct err *e)
{
    char text[CONFIG_NUMBER_BYTES];
    const struct str params[] = {config_text(tenant_id, text), name};
    int64_t id = 0;

    if (name.n == 0 || name.n > 128) {
        return err_set(e, ERR_INPUT, "a name has 1 to 128 bytes");
    }
    if (!config_number(c, sql, params, 2, &id, e)) {
        return false;
    }
    *out = (int32_t)id;
    return true;
}

static bool key_insert(const struct config *c, const struct config_key *k,
                       struct config_key_ids *ids, struct err *e)
{
    char numbers[3][CONFIG_NUMBER_BYTES];
    char hmac[2 * SHA256_BYTES + 1];
    struct str params[6];
    int64_t id = 0;

    str_hex(k->hmac, SHA256_BYTES, hmac);
    params[0] = config_text(ids->tenant_id, numbers[0]);
    params[1] = config_text(ids->project_id, numbers[1]);
    params[2] = ids->user_id == 0 ? str_of(NULL, 0) : config_text(ids->user_id, numbers[2]);
    params[3] = k->name.p != NULL ? k->name : STR("");
    params[4] = k->redacted;
    params[5] = str_c(hmac);
    if (!config_number(c,
                       "INSERT INTO api_key (tenant_id, project_id, user_id, name, redacted, hmac) "
                       "VALUES ($1::int, $2::int, $3::int, $4, $5, decode($6, 'hex')) RETURNING "
                       "key_id",
                       params, 6, &id, e)) {
        return config_exists_story(c, "the key", k->redacted, e);
    }
    ids->key_id = (int32_t)id;
    return true;
}

bool config_key_create(const struct config *c, const struct config_key *k,
                       struct config_key_ids *out, struct err *e)
{
    /* An UPDATE that changes nothing, so that RETURNING has the row that exists. */
    static const char project[] =
        "INSERT INTO project (tenant_id, name) VALUES ($1::int, $2) ON CONFLICT (tenant_id, name) "
        "DO UPDATE SET name = EXCLUDED.name RETURNING project_id";
    static const char user[] =
        "INSERT INTO app_user (tenant_id, name) VALUES ($1::int, $2) ON CONFLICT (tenant_id, name) "
        "DO UPDATE SET name = EXCLUDED.name RETURNING user_id";
    char target[CONFIG_NUMBER_BYTES];
    int64_t tenant_id;
    bool ok;

    *out = (struct config_key_ids){0};
    if (k->name.n > 128) {
        return err_set(e, ERR_INPUT, "a key's name has at most 128 bytes");
    }
    if (!config_begin(c, e)) {
        return false;
    }
    ok = config_tenant_id(c, k->tenant, &tenant_id, e);
    if (ok) {
        out->tenant_id = (int32_t)tenant_id;
        ok = named_id(c, project, tenant_id, k->project.n > 0 ? k->project : STR("default"),
                      &out->project_id, e) &&
             (k->user.n == 0 || named_id(c, user, tenant_id, k->user, &out->user_id, e)) &&
             key_insert(c, k, out, e) &&
             config_audit(c, "key.create", config_text(out->key_id, target), str_of(NULL, 0),
                          str_of(NULL, 0), e);
    }
    return config_end(c, ok, e);
}

#define KEY_JSON                                                                                   \
    "json_build_object('key_id', k.key_id, 'tenant_id', k.tenant_id, 'tenant', t.name, "           \
    "'project_id', k.project_id, 'project', p.name, 'name', k.name, 'redacted', k.redacted, "      \
    "'revoked', k.revoked_at IS NOT NULL, 'created_at', k.created_at)"
#define KEY_FROM                                                                                   \
    " FROM api_key k JOIN tenant t USING (tenant_id) JOIN project p USING (project_id) "

bool config_key_list(const struct config *c, struct str tenant, struct buf *out, struct err *e)
{
    const struct str params[] = {tenant.p != NULL ? tenant : STR("")};
    int64_t id;

    if (tenant.n > 0 && !config_tenant_id(c, tenant, &id, e)) {
        return false;
    }
    return config_json(c,
                       "SELECT json_build_object('data', COALESCE(json_agg(" KEY_JSON
                       " ORDER BY k.key_id), '[]'))" KEY_FROM "WHERE $1 = '' OR t.name = $1",
                       params, 1, out, e);
}

bool config_key_revoke(const struct config *c, int32_t key_id, struct buf *out, struct err *e)
{
    char text[CONFIG_NUMBER_BYTES];
    const struct str params[] = {config_text(key_id, text)};
    size_t before = out->len;
    int64_t found = 0;
    bool ok;

    if (!config_begin(c, e)) {
        return false;
    }
    ok =
        config_number(c,
                      "UPDATE api_key SET revoked_at = COALESCE(revoked_at, now()) WHERE key_id = "
                      "$1::int RETURNING key_id",
                      params, 1, &found, e) &&
        (found != 0 || err_set(e, ERR_NOT_FOUND, "there is no key with id %d", key_id)) &&
        config_json(c, "SELECT " KEY_JSON KEY_FROM "WHERE k.key_id = $1::int", params, 1, out, e) &&
        config_audit(c, "key.revoke", params[0], str_of(NULL, 0), str_of(NULL, 0), e);
    ok = config_end(c, ok, e);
    if (!ok) {
        buf_truncate(out, before);
    }
    return ok;
}
