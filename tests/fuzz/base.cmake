tg_fuzz(json LIBS tg_base RUNS 50000)
tg_fuzz(conf LIBS tg_base RUNS 50000)
