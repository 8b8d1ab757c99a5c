tg_fuzz(gguf LIBS tg_model RUNS 50000)
