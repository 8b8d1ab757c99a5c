/* test_entry.c - the numbers of a row have the names that sql/ gives them. */
#include "ledger/entry.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

static char *migration(void)
{
    char *text = mem_new(1 << 20);
    FILE *f = fopen(SOURCE_DIR "/sql/0002_enumerations.sql", "rbe");

    CHECK(f != NULL);
    CHECK(fread(text, 1, (1 << 20) - 1, f) > 0);
    fclose(f);
    return text;
}

/* "(3, 'name'" is in the INSERT of the table. */
static void assert_listed(const char *sql, const char *table, int number, const char *name)
{
    char insert[64];
    char value[96];
    const char *at;
    const char *end;
    const char *found;

    (void)snprintf(insert, sizeof(insert), "INSERT INTO %s VALUES", table);
    (void)snprintf(value, sizeof(value), "(%d, '%s'", number, name);
    at = strstr(sql, insert);
    assert_non_null(at);
    end = strstr(at, ");");
    found = strstr(at, value);
    if (found == NULL || found > end) {
        fail_msg("%s lacks %s", table, value);
    }
}

static void every_number_is_in_its_lookup_table(void **state)
{
    char *sql = migration();
    int i;

    (void)state;
    for (i = OUTCOME_DONE; i <= OUTCOME_REFUSED_BY_WORKER; i++) {
        assert_listed(sql, "outcome", i, outcome_name((enum outcome)i));
    }
    for (i = ROUTE_BEST; i <= ROUTE_BATCH; i++) {
        assert_listed(sql, "route_reason", i, route_reason_name((enum route_reason)i));
    }
    for (i = USAGE_MEASURED; i <= USAGE_UNKNOWN; i++) {
        assert_listed(sql, "usage_state", i, usage_state_name((enum usage_state)i));
    }
    for (i = FINISH_NONE; i <= FINISH_ERROR; i++) {
        assert_listed(sql, "finish_reason", i, finish_name((enum finish)i));
    }
    mem_free(sql);
}

static void unknown_numbers_have_a_name_too(void **state)
{
    (void)state;
    assert_string_equal(outcome_name((enum outcome)0), "?");
    assert_string_equal(outcome_name((enum outcome)99), "?");
    assert_string_equal(route_reason_name((enum route_reason)0), "?");
    assert_string_equal(usage_state_name((enum usage_state)200), "?");
    assert_string_equal(finish_name((enum finish)77), "?");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_number_is_in_its_lookup_table),
        cmocka_unit_test(unknown_numbers_have_a_name_too),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
