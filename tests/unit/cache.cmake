tg_unit(test_prefix LIBS tg_cache)
tg_unit(test_tokenizer LIBS tg_cache)
target_link_options(test_tokenizer PRIVATE -Wl,--wrap=mem_try) # to make allocations fail
tg_unit(test_tokenizer_golden LIBS tg_model)
tg_unit(test_tokenizer_vocabs LIBS tg_model)
set_tests_properties(test_tokenizer_vocabs PROPERTIES LABELS "unit;golden") # golden fetches its files
if(NOT TOLLGATE_FUZZ) # whose hook this is, too
  set(counted ${CMAKE_SOURCE_DIR}/cache/tokenizer.c ${CMAKE_SOURCE_DIR}/cache/tokenizer_bpe.c
    ${CMAKE_SOURCE_DIR}/cache/tokenizer_pre.c ${CMAKE_SOURCE_DIR}/cache/tokenizer_deepseek.c)
  set_source_files_properties(${counted} PROPERTIES COMPILE_OPTIONS -fsanitize-coverage=trace-pc)
  tg_unit(test_tokenizer_steps LIBS tg_base PkgConfig::UTF8PROC SOURCES ${counted})
endif()
tg_unit(test_blocks LIBS tg_cache)
target_link_options(test_blocks PRIVATE -Wl,--wrap=hash_xxh3_128) # to make hashes collide
tg_unit(test_whohas LIBS tg_cache Threads::Threads)
tg_unit(test_whohas_torn LIBS tg_base Threads::Threads) # takes in whohas.c itself
