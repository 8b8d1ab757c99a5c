tg_fuzz(grammar LIBS tg_engine RUNS 20000)
# Bodies as a lane of the worker prepares them.
tg_fuzz(request LIBS tg_serve SOURCES fuzz/request_recipe.c unit/body_world.c unit/tiny_model.c RUNS 100000)
