tg_unit(test_prefix LIBS tg_cache)
tg_unit(test_tokenizer LIBS tg_cache)
target_link_options(test_tokenizer PRIVATE -Wl,--wrap=mem_try) # to make allocations fail
tg_unit(test_tokenizer_golden LIBS tg_model)
tg_unit(test_blocks LIBS tg_cache)
target_link_options(test_blocks PRIVATE -Wl,--wrap=hash_xxh3_128) # to make hashes collide
tg_unit(test_whohas LIBS tg_cache Threads::Threads)
tg_unit(test_whohas_torn LIBS tg_base Threads::Threads) # takes in whohas.c itself
