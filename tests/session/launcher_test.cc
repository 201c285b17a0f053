// Ranks that torchrun, mpirun and srun have started: what their variables say, and what is wrong with them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "context_guard.h"
#include "fake_daemon.h"

namespace tensorlane::test {
namespace {

using Variables = std::vector<std::pair<const char*, const char*>>;

// Sets variables while it lives. No other thread reads the environment when it begins and ends.
class Environment {
 public:
  explicit Environment(Variables variables) : variables_(std::move(variables)) {
    for (const auto& [name, value] : variables_) setenv(name, value, 1);
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;
  ~Environment() {
    for (const auto& [name, value] : variables_) unsetenv(name);
  }

 private:
  Variables variables_;
};

struct Started {
  const char* by;
  Variables variables;  // of rank 1 of 2
  int local_rank, local_size;
};

class Launchers : public ::testing::TestWithParam<Started> {};

TEST_P(Launchers, SayWhichRankThisIs) {
  const Started& started = GetParam();
  FakeDaemon daemon;
  const Environment environment(started.variables);
  std::thread other([&] {
    const ClientContext first(daemon.socket(), "job", 0, 2);
    EXPECT_EQ(first.status(), TL_OK) << first.error();
  });
  tl_config_t config = TL_CONFIG_INIT;
  config.job = "job";
  config.socket = daemon.socket().c_str();
  tl_context_t* context = nullptr;
  EXPECT_EQ(tl_init(&config, &context), TL_OK) << tl_last_error();
  if (context != nullptr) {
    EXPECT_EQ(tl_rank(context), 1);
    EXPECT_EQ(tl_size(context), 2);
    EXPECT_EQ(tl_local_rank(context), started.local_rank);
    EXPECT_EQ(tl_local_size(context), started.local_size);
    EXPECT_EQ(tl_finalize(context), TL_OK) << tl_last_error();
  }
  other.join();
}

INSTANTIATE_TEST_SUITE_P(
    Of, Launchers,
    ::testing::Values(
        Started{"Torchrun", {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}}, 1, 2},
        Started{"OpenMpi",
                {{"OMPI_COMM_WORLD_RANK", "1"},
                 {"OMPI_COMM_WORLD_SIZE", "2"},
                 {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                 {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}},
                1,
                2},
        Started{"SlurmOnTheSecondNode",
                {{"SLURM_PROCID", "1"},
                 {"SLURM_STEP_NUM_TASKS", "2"},
                 {"SLURM_LOCALID", "0"},
                 {"SLURM_NODEID", "1"},
                 {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"}},
                0,
                1},
        Started{"SlurmOnOneNode",
                {{"SLURM_PROCID", "1"},
                 {"SLURM_STEP_NUM_TASKS", "2"},
                 {"SLURM_LOCALID", "1"},
                 {"SLURM_NODEID", "2"},
                 {"SLURM_STEP_TASKS_PER_NODE", "5(x2),2,7"}},
                1,
                2},
        // mpirun starts one process of its own on each node, by srun; and either starts torchrun.
        Started{"OpenMpiBySlurm",
                {{"OMPI_COMM_WORLD_RANK", "1"},
                 {"OMPI_COMM_WORLD_SIZE", "2"},
                 {"SLURM_PROCID", "0"},
                 {"SLURM_STEP_NUM_TASKS", "1"}},
                0,
                1},
        // torchrun on the second node, started there by srun.
        Started{"TorchrunBySlurm",
                {{"RANK", "1"},
                 {"WORLD_SIZE", "2"},
                 {"LOCAL_RANK", "0"},
                 {"LOCAL_WORLD_SIZE", "1"},
                 {"SLURM_PROCID", "1"},
                 {"SLURM_STEP_NUM_TASKS", "2"},
                 {"SLURM_NODEID", "1"},
                 {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"}},
                0,
                1},
        Started{"OpenMpiOnTheSecondNodeOfSlurm",
                {{"OMPI_COMM_WORLD_RANK", "1"},
                 {"OMPI_COMM_WORLD_SIZE", "2"},
                 {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
                 {"SLURM_NODEID", "1"}},
                0,
                1},
        // A script that says which GPU a process has.
        Started{"OpenMpiAndALocalRank",
                {{"OMPI_COMM_WORLD_RANK", "1"},
                 {"OMPI_COMM_WORLD_SIZE", "2"},
                 {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                 {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                 {"LOCAL_RANK", "0"}},
                1,
                2},
        Started{"TorchrunByOpenMpi",
                {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}},
                0,
                1}),
    [](const auto& info) { return info.param.by; });

// Slurm says how many tasks a job may have, though the script that asks for them is one process.
TEST(LaunchersOfNoStep, AProcessInABatchScriptIsByItself) {
  FakeDaemon daemon;
  const Environment environment({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}, {"SLURM_LOCALID", "0"}});
  tl_config_t config = TL_CONFIG_INIT;
  config.job = "job";
  config.socket = daemon.socket().c_str();
  tl_context_t* context = nullptr;
  ASSERT_EQ(tl_init(&config, &context), TL_OK) << tl_last_error();
  EXPECT_EQ(tl_size(context), 1);
  EXPECT_EQ(tl_finalize(context), TL_OK);
}

// An interactive step of one task; and a program that says itself what the variables do not.
TEST(LaunchersOfNoStep, HalfOfTorchrunsVariablesContradictNobody) {
  FakeDaemon daemon;
  for (const char* tasks : {"1", "4"}) {
    const Environment environment({{"RANK", "0"}, {"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", tasks}});
    tl_config_t config = TL_CONFIG_INIT;
    config.job = "job";
    config.socket = daemon.socket().c_str();
    if (tasks[0] != '1') config.world_size = 1;
    tl_context_t* context = nullptr;
    ASSERT_EQ(tl_init(&config, &context), TL_OK) << tl_last_error();
    EXPECT_EQ(tl_size(context), 1);
    EXPECT_EQ(tl_finalize(context), TL_OK);
  }
}

struct Wrong {
  const char* what;
  Variables variables;
  const char* error;
};

class WrongVariables : public ::testing::TestWithParam<Wrong> {};

TEST_P(WrongVariables, AreNamed) {
  const Environment environment(GetParam().variables);
  tl_context_t* context = nullptr;
  EXPECT_EQ(tl_init(nullptr, &context), TL_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(context, nullptr);
  EXPECT_STREQ(tl_last_error(), GetParam().error);
}

Variables tasks(const char* per_node, const char* node = "0") {
  return {{"SLURM_PROCID", "0"},
          {"SLURM_STEP_NUM_TASKS", "8"},
          {"SLURM_NODEID", node},
          {"SLURM_STEP_TASKS_PER_NODE", per_node}};
}

INSTANTIATE_TEST_SUITE_P(
    Of, WrongVariables,
    ::testing::Values(
        Wrong{"ARankOutsideItsWorld",
              {{"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_SIZE", "2"}},
              "the configuration is wrong: rank (OMPI_COMM_WORLD_RANK) is '2': set it below the world size 2"},
        Wrong{"NoNumber",
              {{"SLURM_STEP_NUM_TASKS", "two"}},
              "the configuration is wrong: SLURM_STEP_NUM_TASKS is 'two': set it to a number from 0 to 65536"},
        Wrong{"MoreHereThanThereAre", tasks("9"),
              "the configuration is wrong: local_world_size (SLURM_STEP_TASKS_PER_NODE) is '9': set it to 1..8"},
        Wrong{"NoListOfNodes", tasks("4(x"),
              "the configuration is wrong: SLURM_STEP_TASKS_PER_NODE is '4(x': start the ranks by srun, or set RANK, "
              "WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE"},
        Wrong{
            "MoreBehindTheList", tasks("4(x2).5"),
            "the configuration is wrong: SLURM_STEP_TASKS_PER_NODE is '4(x2).5': start the ranks by srun, or set RANK, "
            "WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE"},
        Wrong{
            "NoNodes", tasks("4,3(x0)"),
            "the configuration is wrong: SLURM_STEP_TASKS_PER_NODE is '4,3(x0)': start the ranks by srun, or set RANK, "
            "WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE"},
        Wrong{"NoRank",
              {{"WORLD_SIZE", "2"}},
              "the configuration is wrong: RANK is empty: set it to this process's rank, from 0: there are 2"},
        Wrong{"ARankThatAShellHasLeftUnderSrun",
              {{"RANK", "0"}, {"SLURM_PROCID", "1"}, {"SLURM_STEP_NUM_TASKS", "4"}},
              "the configuration is wrong: SLURM_STEP_NUM_TASKS is '4' and WORLD_SIZE is not set, but RANK is '0': "
              "unset RANK, or set WORLD_SIZE too"},
        Wrong{"AWorldThatAShellHasLeftUnderMpirun",
              {{"WORLD_SIZE", "1"}, {"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}},
              "the configuration is wrong: OMPI_COMM_WORLD_SIZE is '2' and RANK is not set, but WORLD_SIZE is '1': "
              "unset WORLD_SIZE, or set RANK too"},
        Wrong{"NothingBehindTheComma", tasks("4,", "1"),
              "the configuration is wrong: SLURM_STEP_TASKS_PER_NODE is '4,': start the ranks by srun, or set RANK, "
              "WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE"},
        Wrong{"NoneHere", tasks("0"),
              "the configuration is wrong: local_world_size (SLURM_STEP_TASKS_PER_NODE) is '0': set it to 1..8"},
        Wrong{"ANodeBehindTheLast", tasks("4(x2)", "2"),
              "the configuration is wrong: SLURM_STEP_TASKS_PER_NODE is '4(x2)': start the ranks by srun, or set RANK, "
              "WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE"},
        Wrong{"NoNode", tasks("4(x2)", "b"),
              "the configuration is wrong: SLURM_STEP_TASKS_PER_NODE is '4(x2)': start the ranks by srun, or set RANK, "
              "WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE"}),
    [](const auto& info) { return info.param.what; });

}  // namespace
}  // namespace tensorlane::test
