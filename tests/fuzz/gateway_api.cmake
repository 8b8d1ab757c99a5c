# Requests of clients and answers of engines.
tg_fuzz(openai LIBS tg_api RUNS 50000)
