/* fuzz_chat.c - any JSON as messages and tools: every family renders or says why not; segments come
 * in the order of the messages, and no text of the request is ever a special one. */
#include <stdlib.h>

#include "worker/model/chat.h"

#define ARENA_BYTES (16u << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(enum chat_family f, const struct json *root, struct str text)
{
    struct chat_rendering r;
    struct arena a;
    struct err e = {0};
    bool ok;

    arena_init(&a, ARENA_BYTES);
    ok = chat_render_tools(f, &a, json_get(root, STR("messages")), json_get(root, STR("tools")), &r,
                           &e);
    CHECK(ok == (e.code == ERR_NONE));
    for (uint32_t i = 0; ok && i < r.count; i++) {
        const struct chat_segment *s = &r.segments[i];

        CHECK(s->text.n > 0 && (i == 0 || s->message >= s[-1].message));
        CHECK(s->kind == CHAT_CONTENT || s->text.p < text.p || s->text.p >= text.p + text.n);
    }
    CHECK(!ok || r.stable_messages <= json_get(root, STR("messages"))->count);
    arena_fini(&a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct arena a;
    struct err e = {0};
    const struct json *root, *messages, *tools;

    CHECK(chat_family_of_template(str_of(data, size)) == CHAT_NONE);
    arena_init(&a, ARENA_BYTES);
    root = json_parse(&a, str_of(data, size), &json_limits_api, &e);
    messages = root != NULL ? json_get(root, STR("messages")) : NULL;
    tools = root != NULL ? json_get(root, STR("tools")) : NULL;
    if (messages != NULL && messages->type == JSON_ARRAY &&
        (json_is_absent(tools) || tools->type == JSON_ARRAY)) {
        for (unsigned f = CHAT_SMOLLM2; f <= CHAT_MISTRAL_V7; f++) {
            check(f, root, str_of(data, size));
        }
    }
    arena_fini(&a);
    return 0;
}
