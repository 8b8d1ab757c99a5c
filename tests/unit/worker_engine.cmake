tg_unit(test_sample LIBS tg_engine)
tg_unit(test_cost LIBS tg_engine)
tg_unit(test_engine LIBS tg_engine SOURCES unit/engine_world.c)
tg_unit(test_engine_spec LIBS tg_engine SOURCES unit/engine_world.c)
# With argument 10000 the whole differential test, and test_engine_exact with 300.
tg_unit(test_engine_random LIBS tg_engine SOURCES unit/engine_world.c)
tg_unit(test_engine_exact LIBS tg_engine tg_cpu SOURCES unit/tiny_model.c)
# The whole of both runs with the simulator: seconds on a release build.
add_test(NAME engine_10000_seeds COMMAND test_engine_random 10000)
add_test(NAME engine_exact_300_seeds COMMAND test_engine_exact 300)
set_tests_properties(engine_10000_seeds engine_exact_300_seeds PROPERTIES LABELS sim TIMEOUT 900)
tg_unit(test_engine_thread LIBS tg_serve Threads::Threads)
tg_unit(test_lane LIBS tg_serve Threads::Threads)
tg_unit(test_serve LIBS tg_serve SOURCES unit/net_fake.c unit/tiny_model.c)
tg_unit(test_bodies LIBS tg_serve SOURCES unit/body_world.c unit/tiny_model.c)
tg_unit(test_detok LIBS tg_engine)
tg_unit(test_chat LIBS tg_serve SOURCES unit/tiny_model.c)
set_tests_properties(test_chat PROPERTIES LABELS "unit;golden") # golden fetches vocabularies
# Real templates against jinja2; 77: jinja2 or the templates are absent.
add_executable(chat_cli ${CMAKE_SOURCE_DIR}/tests/golden/chat_cli.c)
target_link_libraries(chat_cli PRIVATE tg_model)
add_test(NAME golden_chat COMMAND python3 -B ${CMAKE_SOURCE_DIR}/tests/golden/check_chat.py $<TARGET_FILE:chat_cli>)
set_tests_properties(golden_chat PROPERTIES LABELS golden TIMEOUT 300 SKIP_RETURN_CODE 77)
tg_unit(test_kv_events LIBS tg_serve)
tg_unit(test_kv_mirror LIBS tg_serve)
tg_unit(test_model_digest LIBS tg_model SOURCES unit/tiny_model.c)
tg_unit(test_worker_tools LIBS tg_serve SOURCES unit/tiny_model.c)
tg_unit(test_receipts LIBS tg_serve)
tg_unit(test_ring LIBS tg_base)
# For tests/e2e/test_worker.py.
add_executable(make_tiny_model ${CMAKE_CURRENT_LIST_DIR}/make_tiny_model.c
  ${CMAKE_CURRENT_LIST_DIR}/tiny_model.c)
target_link_libraries(make_tiny_model PRIVATE tg_model)
include(${CMAKE_CURRENT_LIST_DIR}/grammar.cmake)
