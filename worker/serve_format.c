/* serve_format.c - what the answer must look like: response_format (and vLLM's names for it), tools
 * and tool_choice. Compiles the grammar; a format that cannot be enforced is refused, never
 * ignored.
 *
 * Compiling is bounded (GRAMMAR_WORK_MAX: under 50 ms) and done on a lane. */
#include "worker/job.h"

#define TOOL_CALLS_MAX 32 /* in one answer, when parallel calls are not forbidden */
#define TOOL_NAME_MAX 64  /* OpenAI's bound */
#define BAN (-1e30f)

static bool compile(struct job *j, const struct grammar_source *src, const char *param,
                    struct api_error *x)
{
    struct err e = {0};

    if (grammar_store_compile(j->serve->grammars, src, &j->grammar, &e)) {
        return true;
    }
    if (e.code == ERR_NO_MEMORY) {
        return api_refuse(x, 503, NULL, NULL, "There is no memory for this request now.");
    }
    return api_refuse(x, 400, e.code == ERR_UNSUPPORTED ? "unsupported_parameter" : NULL, param,
                      "'%s' cannot be enforced: %s.", param, e.text);
}

static bool compile_schema(struct job *j, const struct json *schema, const char *param,
                           struct api_error *x)
{
    struct grammar_source src = {.kind = GRAMMAR_JSON_SCHEMA, .schema = schema};
    struct err e = {0};

    if (schema->type == JSON_STRING) { /* vLLM's guided_json may be a text of JSON */
        src.schema = json_parse(&j->arena, schema->text, &json_limits_api, &e);
    }
    if (src.schema == NULL) {
        return api_refuse(x, 400, NULL, param, "'%s' is a text that is no JSON: %s.", param,
                          e.text);
    }
    if (src.schema->type != JSON_OBJECT && src.schema->type != JSON_TRUE &&
        src.schema->type != JSON_FALSE) {
        return api_bad(x, param, "must be a JSON schema: an object");
    }
    return compile(j, &src, param, x);
}

static bool compile_regex(struct job *j, const struct json *regex, const char *param,
                          struct api_error *x)
{
    struct grammar_source src = {.kind = GRAMMAR_REGEX};

    if (json_is_absent(regex) || regex->type != JSON_STRING) {
        return api_bad(x, param, "must have a regular expression as a string");
    }
    src.regex = regex->text;
    return compile(j, &src, param, x);
}

static bool parse_response_format(struct job *j, const struct json *v, const char *param,
                                  struct api_error *x)
{
    const struct json *type = json_get(v, STR("type")), *inner;

    if (v->type != JSON_OBJECT || json_is_absent(type) || type->type != JSON_STRING) {
        return api_bad(x, param, "must be an object with a type");
    }
    if (str_eq(type->text, STR("text"))) {
        return true;
    }
    if (str_eq(type->text, STR("json_object"))) {
        return compile(j, &(struct grammar_source){.kind = GRAMMAR_JSON_OBJECT}, param, x);
    }
    if (str_eq(type->text, STR("regex"))) {
        return compile_regex(j, json_get(v, STR("regex")), param, x);
    }
    if (!str_eq(type->text, STR("json_schema"))) {
        return api_unsupported(x, param,
                               "has a type other than text, json_object, json_schema "
                               "and regex, which is not supported");
    }
    inner = json_get(v, STR("json_schema"));
    inner = json_get(inner != NULL ? inner : v, STR("schema"));
    if (json_is_absent(inner)) {
        return api_bad(x, param, "of type json_schema needs json_schema.schema");
    }
    return compile_schema(j, inner, param, x);
}

/* vLLM's newer home of its fields. *schema and *regex: NULL when they are not there. */
static bool parse_structured(const struct job *j, const struct json **schema,
                             const struct json **regex, struct api_error *x)
{
    const struct json *outer = job_field(j, "structured_outputs");

    *schema = *regex = NULL;
    if (outer == NULL) {
        return true;
    }
    if (outer->type != JSON_OBJECT) {
        return api_bad(x, "structured_outputs", "must be an object with json or regex");
    }
    for (const struct json *m = outer->child; m != NULL; m = m->next) {
        if (json_is_absent(m)) {
            continue;
        }
        if (str_eq(m->key, STR("json"))) {
            *schema = m;
        } else if (str_eq(m->key, STR("regex"))) {
            *regex = m;
        } else {
            return api_unsupported(x, "structured_outputs",
                                   "other than json and regex is not supported");
        }
    }
    return true;
}

/* Every form in which a format can be asked for; at most one may be there. */
static bool parse_guided(struct job *j, struct api_error *x)
{
    static const char *const refused[] = {"guided_choice", "guided_grammar",
                                          "guided_decoding_backend", "guided_whitespace_pattern",
                                          "structural_tag"};
    const struct json *schema, *regex;
    bool found = false;

    for (size_t i = 0; i < ARRAY_LEN(refused); i++) {
        if (job_field(j, refused[i]) != NULL) {
            return api_unsupported(x, refused[i], "is not supported");
        }
    }
    if (!parse_structured(j, &schema, &regex, x)) {
        return false;
    }
    {
        const struct {
            const struct json *v;
            const char *param;
            bool (*parse)(struct job *j, const struct json *v, const char *param,
                          struct api_error *x);
        } forms[] = {
            {job_field(j, "response_format"), "response_format", parse_response_format},
            {job_field(j, "guided_json"), "guided_json", compile_schema},
            {job_field(j, "guided_regex"), "guided_regex", compile_regex},
            {schema, "structured_outputs", compile_schema},
            {regex, "structured_outputs", compile_regex},
        };

        for (size_t i = 0; i < ARRAY_LEN(forms); i++) {
            if (forms[i].v != NULL && found) {
                return api_bad(x, "response_format", "may be given in one form only");
            }
            found = found || forms[i].v != NULL;
        }
        for (size_t i = 0; i < ARRAY_LEN(forms); i++) {
            if (forms[i].v != NULL) {
                return forms[i].parse(j, forms[i].v, forms[i].param, x);
            }
        }
    }
    return true;
}

static bool is_name(struct str s)
{
    if (s.n == 0 || s.n > TOOL_NAME_MAX) {
        return false;
    }
    for (size_t i = 0; i < s.n; i++) {
        char c = s.p[i];

        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
              c == '_' || c == '-' || c == '.')) {
            return false;
        }
    }
    return true;
}

/* Of a checked tool. */
static struct str tool_name(const struct json *tool)
{
    return json_get(json_get(tool, STR("function")), STR("name"))->text;
}

static bool check_tools(const struct json *tools, struct api_error *x)
{
    if (tools->type != JSON_ARRAY || tools->count > GRAMMAR_TOOLS_MAX) {
        return api_bad(x, "tools", "must be an array of at most 128 tools");
    }
    for (const struct json *t = tools->child; t != NULL; t = t->next) {
        const struct json *type = json_get(t, STR("type")), *f = json_get(t, STR("function"));
        const struct json *name = f != NULL ? json_get(f, STR("name")) : NULL;
        const struct json *parameters = f != NULL ? json_get(f, STR("parameters")) : NULL;

        if (t->type != JSON_OBJECT || type == NULL || type->type != JSON_STRING) {
            return api_bad(x, "tools", "has a tool without a type");
        }
        if (!str_eq(type->text, STR("function"))) {
            return api_unsupported(x, "tools", "has a tool that is no function");
        }
        if (name == NULL || name->type != JSON_STRING || !is_name(name->text)) {
            return api_bad(x, "tools",
                           "has a function whose name is not 1 to 64 letters, digits, '_', '-' "
                           "or '.'");
        }
        if (!json_is_absent(parameters) && parameters->type != JSON_OBJECT) {
            return api_bad(x, "tools", "has a function whose parameters are no schema");
        }
        for (const struct json *o = tools->child; o != t; o = o->next) {
            if (str_eq(tool_name(o), name->text)) {
                return api_bad(x, "tools", "has two functions of one name");
            }
        }
    }
    return true;
}

/* tool_choice, read: how, and for a named one which. */
struct tool_want {
    enum { WANT_NONE = 1, WANT_AUTO, WANT_REQUIRED, WANT_NAMED } how;
    struct str name;
};

static bool parse_choice(const struct job *j, struct tool_want *out, struct api_error *x)
{
    const struct json *v = job_field(j, "tool_choice"), *name;

    *out = (struct tool_want){.how = WANT_AUTO};
    if (v == NULL) {
        return true;
    }
    if (v->type == JSON_STRING) {
        out->how = str_eq(v->text, STR("none"))       ? WANT_NONE
                   : str_eq(v->text, STR("auto"))     ? WANT_AUTO
                   : str_eq(v->text, STR("required")) ? WANT_REQUIRED
                                                      : 0;
        return out->how != 0 ||
               api_bad(x, "tool_choice", "must be none, auto, required or a named function");
    }
    name = json_get(json_get(v, STR("function")), STR("name"));
    if (name == NULL || name->type != JSON_STRING) {
        return api_unsupported(x, "tool_choice",
                               "other than none, auto, required or "
                               "{\"type\": \"function\", \"function\": {\"name\": ...}} is not "
                               "supported");
    }
    *out = (struct tool_want){.how = WANT_NAMED, .name = name->text};
    return true;
}

/* The model sees the tools, so that the prompt is the same one as before, but cannot begin a call
 * where a call begins with a token of its own. */
static bool ban_calls(struct job *j, struct api_error *x)
{
    struct sample_params *p = &j->request.sample;
    struct sample_bias *bias;

    if (j->serve->shape.start_id < 0) {
        return true;
    }
    bias = arena_array(&j->arena, p->n_bias + 1, sizeof(*bias));
    if (bias == NULL) {
        return api_refuse(x, 503, NULL, NULL, "There is no memory for this request now.");
    }
    if (p->n_bias > 0) {
        memcpy(bias, p->bias, p->n_bias * sizeof(*bias));
    }
    bias[p->n_bias++] = (struct sample_bias){.id = j->serve->shape.start_id, .bias = BAN};
    p->bias = bias;
    return true;
}

static bool force_calls(struct job *j, const struct tool_want *want, struct api_error *x)
{
    struct grammar_tool *list = arena_array(&j->arena, j->tools->count, sizeof(*list));
    const struct tool_shape *shape = &j->serve->shape;
    struct grammar_tool_format format;
    struct grammar_source src = {.kind = GRAMMAR_TOOLS, .tools = list, .format = &format};
    uint32_t most = shape->format->calls_max > 0 ? shape->format->calls_max : TOOL_CALLS_MAX;

    if (list == NULL) {
        return api_refuse(x, 503, NULL, NULL, "There is no memory for this request now.");
    }
    for (const struct json *t = j->tools->child; t != NULL; t = t->next) {
        const struct json *schema = json_get(json_get(t, STR("function")), STR("parameters"));

        if (want->how != WANT_NAMED || str_eq(tool_name(t), want->name)) {
            list[src.n_tools++] = (struct grammar_tool){
                .name = tool_name(t), .parameters = json_is_absent(schema) ? NULL : schema};
        }
    }
    if (src.n_tools == 0) {
        return api_refuse(x, 400, NULL, "tool_choice",
                          "'tool_choice' names `" STR_FMT "`, which is not among the tools.",
                          (int)size_min(want->name.n, TOOL_NAME_MAX), want->name.p);
    }
    tool_shape_grammar(shape, j->one_call || want->how == WANT_NAMED ? 1 : most, &format);
    j->tool_mode = TOOLS_FORCED;
    return compile(j, &src, "tools", x);
}

/* Some message is the answer of a tool. */
static bool holds_a_result(const struct job *j)
{
    const struct json *messages = job_field(j, "messages");

    for (const struct json *m = messages != NULL ? messages->child : NULL; m != NULL; m = m->next) {
        const struct json *role = json_get(m, STR("role"));

        if (role != NULL && role->type == JSON_STRING && str_eq(role->text, STR("tool"))) {
            return true;
        }
    }
    return false;
}

/* A family without tools: the definitions are accepted unread where no call is wanted, and where
 * the conversation has its result already. */
static bool no_tools(const struct job *j, const struct tool_want *want, struct api_error *x)
{
    if (want->how == WANT_NONE || (want->how == WANT_AUTO && holds_a_result(j))) {
        return true;
    }
    return api_refuse(x, 400, "unsupported_parameter", "tools",
                      "'tools' is not supported by this model: its chat format (%s) defines none. "
                      "Send tool_choice \"none\" to have them ignored.",
                      chat_family_name(j->serve->plan.family));
}

static bool parse_tools(struct job *j, struct api_error *x)
{
    const struct json *tools = job_field(j, "tools"), *functions = job_field(j, "functions");
    struct tool_want want;
    bool parallel = true;

    if (functions != NULL && functions->count > 0) {
        return api_unsupported(x, "functions", "is not supported; send tools");
    }
    if (!parse_choice(j, &want, x) || !job_bool(j, "parallel_tool_calls", &parallel, x)) {
        return false;
    }
    if (tools == NULL || (tools->type == JSON_ARRAY && tools->count == 0)) {
        return want.how <= WANT_AUTO || api_bad(x, "tool_choice", "needs 'tools'");
    }
    if (!check_tools(tools, x)) {
        return false;
    }
    if (j->serve->shape.format == NULL) {
        return no_tools(j, &want, x);
    }
    j->tools = tools;
    j->one_call = !parallel;
    if (want.how == WANT_NONE) {
        return ban_calls(j, x);
    }
    if (j->grammar != NULL) {
        return api_unsupported(x, "response_format",
                               "together with 'tools' is not supported; send tool_choice \"none\"");
    }
    j->tool_mode = TOOLS_AUTO;
    return want.how == WANT_AUTO || force_calls(j, &want, x);
}

bool format_parse(struct job *j, struct api_error *x)
{
    if (!parse_guided(j, x) || (j->kind == JOB_CHAT && !parse_tools(j, x))) {
        return false;
    }
    j->request.grammar = j->grammar;
    return true;
}
