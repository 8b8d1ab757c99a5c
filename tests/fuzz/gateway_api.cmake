# Requests of clients and answers of engines: `fuzz_openai corpus/openai`, or with -runs=0.
if(TOLLGATE_FUZZ)
  add_executable(fuzz_openai ${CMAKE_SOURCE_DIR}/tests/fuzz/fuzz_openai.c)
  target_compile_options(fuzz_openai PRIVATE -fsanitize=fuzzer)
  target_link_options(fuzz_openai PRIVATE -fsanitize=fuzzer)
  target_link_libraries(fuzz_openai PRIVATE tg_api)
  add_test(NAME fuzz_openai COMMAND fuzz_openai -runs=0 ${CMAKE_SOURCE_DIR}/tests/fuzz/corpus/openai)
  set_tests_properties(fuzz_openai PROPERTIES LABELS fuzz)
endif()
