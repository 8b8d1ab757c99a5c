tg_unit(test_gateway_config SOURCES ${CMAKE_SOURCE_DIR}/gateway/config.c LIBS tg_net tg_base)
tg_unit(test_request_voids SOURCES ${CMAKE_CURRENT_LIST_DIR}/ledger_world.c LIBS tg_gateway)
tg_unit(test_store LIBS tg_gateway)
tg_unit(test_control_seed LIBS tg_gateway)
