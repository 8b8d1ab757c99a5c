add_executable(bench_whohas ${CMAKE_SOURCE_DIR}/tests/bench/bench_whohas.c)
target_link_libraries(bench_whohas PRIVATE tg_cache)
