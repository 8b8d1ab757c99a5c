# What tests/bench/worker.py runs; see there.
add_executable(bench_worker EXCLUDE_FROM_ALL ${CMAKE_SOURCE_DIR}/tests/bench/bench_worker.c
  ${CMAKE_SOURCE_DIR}/worker/bench.c ${CMAKE_SOURCE_DIR}/worker/bench_run.c
  ${CMAKE_SOURCE_DIR}/worker/bench_report.c)
target_link_libraries(bench_worker PRIVATE tg_cpu)
