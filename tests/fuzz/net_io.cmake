# Fuzz targets of base/net's own parsers: run as `fuzz_h1 corpus/h1`, or with -runs=0 to replay only.
if(TOLLGATE_FUZZ)
  foreach(parser h1 sse)
    add_executable(fuzz_${parser} ${CMAKE_SOURCE_DIR}/tests/fuzz/fuzz_${parser}.c)
    target_compile_options(fuzz_${parser} PRIVATE -fsanitize=fuzzer)
    target_link_options(fuzz_${parser} PRIVATE -fsanitize=fuzzer)
    target_link_libraries(fuzz_${parser} PRIVATE tg_net)
    add_test(NAME fuzz_${parser} COMMAND fuzz_${parser} -runs=0
      ${CMAKE_SOURCE_DIR}/tests/fuzz/corpus/${parser})
    set_tests_properties(fuzz_${parser} PROPERTIES LABELS fuzz)
  endforeach()
endif()
