# bench_ledger [disk folder] [rows], with TOLLGATE_TEST_PG of tests/pg.sh.
add_executable(bench_ledger EXCLUDE_FROM_ALL ${CMAKE_SOURCE_DIR}/tests/bench/bench_ledger.c
  ${CMAKE_SOURCE_DIR}/tests/unit/ledger_world.c)
target_compile_definitions(bench_ledger PRIVATE SOURCE_DIR="${CMAKE_SOURCE_DIR}")
target_link_libraries(bench_ledger PRIVATE tg_ledger PkgConfig::CMOCKA)
