tg_fuzz(h1 LIBS tg_net RUNS 50000)
tg_fuzz(sse LIBS tg_net RUNS 50000)
