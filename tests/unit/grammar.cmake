tg_unit(test_grammar LIBS tg_engine Threads::Threads SOURCES unit/grammar_world.c)
tg_unit(test_grammar_regex LIBS tg_engine SOURCES unit/grammar_world.c)
tg_unit(test_grammar_limits LIBS tg_engine SOURCES unit/grammar_world.c)
# For tests/e2e/test_grammar.py: the grammar beside jsonschema and llguidance.
add_executable(grammar_probe ${CMAKE_SOURCE_DIR}/tests/golden/grammar_probe.c)
target_link_libraries(grammar_probe PRIVATE tg_engine)
add_executable(bench_grammar EXCLUDE_FROM_ALL ${CMAKE_SOURCE_DIR}/tests/bench/bench_grammar.c)
target_link_libraries(bench_grammar PRIVATE tg_engine)
