tg_unit(test_auth LIBS tg_admit)
tg_unit(test_gcra LIBS tg_admit)
tg_unit(test_quota LIBS tg_admit)
tg_unit(test_quota_threads LIBS tg_admit)
tg_unit(test_route LIBS tg_base SOURCES ${CMAKE_SOURCE_DIR}/gateway/route/route.c)
# Counts hashes: a malformed key must cost none.
target_link_options(test_auth PRIVATE -Wl,--wrap=hash_hmac_sha256)
# Not a test: prints what a reserve costs.
add_executable(bench_quota EXCLUDE_FROM_ALL bench/bench_quota.c)
target_link_libraries(bench_quota PRIVATE tg_admit)
