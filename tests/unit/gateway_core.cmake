tg_unit(test_gateway_config SOURCES ${CMAKE_SOURCE_DIR}/gateway/config.c LIBS tg_net tg_base)
