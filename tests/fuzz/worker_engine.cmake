tg_fuzz(grammar LIBS tg_engine RUNS 20000)
