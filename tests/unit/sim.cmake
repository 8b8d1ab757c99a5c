# The simulator: the gateway's own code on a simulated host. One program, one seed after another.
add_executable(sim
  sim/main.c sim/sim_env.c sim/sim_net.c sim/sim_file.c sim/sim_http.c sim/sim_client.c sim/sim_hear.c
  sim/sim_h2.c sim/sim_worker.c sim/sim_generate.c sim/sim_store.c sim/sim_gateway.c sim/sim_world.c
  sim/sim_check.c)
target_include_directories(sim PRIVATE ${CMAKE_SOURCE_DIR}/tests/sim)
target_link_libraries(sim PRIVATE tg_gateway)
add_test(NAME sim_1000_seeds COMMAND sim --seeds 1000)
add_test(NAME sim_fsync_fails COMMAND sim --seeds 300 --from 300000 --fsync-fails)
set_tests_properties(sim_1000_seeds sim_fsync_fails PROPERTIES LABELS sim TIMEOUT 900)
