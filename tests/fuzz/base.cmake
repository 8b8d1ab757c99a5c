# Fuzz targets of base: run as `fuzz_json corpus/json`, or with -runs=0 to replay the corpus only.
if(TOLLGATE_FUZZ)
  foreach(parser json conf)
    add_executable(fuzz_${parser} ${CMAKE_SOURCE_DIR}/tests/fuzz/fuzz_${parser}.c)
    target_compile_options(fuzz_${parser} PRIVATE -fsanitize=fuzzer)
    target_link_options(fuzz_${parser} PRIVATE -fsanitize=fuzzer)
    target_link_libraries(fuzz_${parser} PRIVATE tg_base)
    add_test(NAME fuzz_${parser} COMMAND fuzz_${parser} -runs=0
      ${CMAKE_SOURCE_DIR}/tests/fuzz/corpus/${parser})
    set_tests_properties(fuzz_${parser} PROPERTIES LABELS fuzz)
  endforeach()
endif()
