tg_fuzz(chat LIBS tg_model RUNS 50000)
tg_fuzz(tokenizer LIBS tg_cache RUNS 50000)
