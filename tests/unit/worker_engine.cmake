tg_unit(test_sample LIBS tg_engine)
tg_unit(test_engine LIBS tg_engine)
tg_unit(test_engine_thread LIBS tg_serve Threads::Threads)
tg_unit(test_detok LIBS tg_engine)
tg_unit(test_chat LIBS tg_serve SOURCES unit/tiny_model.c)
tg_unit(test_kv_events LIBS tg_serve)
tg_unit(test_receipts LIBS tg_serve)
tg_unit(test_ring LIBS tg_base)
# For tests/e2e/test_worker.py.
add_executable(make_tiny_model ${CMAKE_CURRENT_LIST_DIR}/make_tiny_model.c
  ${CMAKE_CURRENT_LIST_DIR}/tiny_model.c)
target_link_libraries(make_tiny_model PRIVATE tg_model)
