# Fuzz target of cache: run as `fuzz_tokenizer corpus/tokenizer`; -runs=0 replays the corpus only.
if(TOLLGATE_FUZZ)
  add_executable(fuzz_tokenizer ${CMAKE_SOURCE_DIR}/tests/fuzz/fuzz_tokenizer.c)
  target_compile_options(fuzz_tokenizer PRIVATE -fsanitize=fuzzer)
  target_link_options(fuzz_tokenizer PRIVATE -fsanitize=fuzzer)
  target_link_libraries(fuzz_tokenizer PRIVATE tg_cache)
  add_test(NAME fuzz_tokenizer COMMAND fuzz_tokenizer -runs=0
    ${CMAKE_SOURCE_DIR}/tests/fuzz/corpus/tokenizer)
  set_tests_properties(fuzz_tokenizer PROPERTIES LABELS fuzz)
endif()
