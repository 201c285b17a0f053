// The section 'nccl' of a fabric file: its mistakes, what holds without it, and that it is written as it was read.
#include "common/fabric/nccl.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>

#include "common/fabric/fabric.h"
#include "tests/unit/fabric/mistakes.h"

namespace tensorlane::fabric {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

#define NCCL HOST "nccl:\n"

INSTANTIATE_TEST_SUITE_P(
    Section, FabricError,
    ::testing::Values(
        Mistake{"NoMapping", HOST "nccl: [mixed]\n",
                "'nccl' is a list: fabric.yaml:2: expected a mapping with groups, mixed, clear_to_send, "
                "separate_reduce_scatter, dropped, environment"},
        Mistake{"Null", HOST "nccl: ~\n",
                "'nccl' is empty: fabric.yaml:2: expected a mapping with groups, mixed, clear_to_send, "
                "separate_reduce_scatter, dropped, environment"},
        Mistake{"UnknownKey", NCCL "  mixd: bulk\n",
                "unknown key 'mixd' in 'nccl': fabric.yaml:3: did you mean 'mixed'? expected one of groups, mixed, "
                "clear_to_send, separate_reduce_scatter, dropped, environment"},
        Mistake{"UnknownMixed", NCCL "  dropped: report\n  mixed: bluk\n",
                "unknown class 'bluk' of 'mixed' in 'nccl': fabric.yaml:4: did you mean 'bulk'? expected one of "
                "urgent, bulk"},
        Mistake{"MixedIsMixed", NCCL "  mixed: mixed\n",
                "unknown class 'mixed' of 'mixed' in 'nccl': fabric.yaml:3: expected one of urgent, bulk"},
        Mistake{"MixedIsControl", NCCL "  mixed: control\n",
                "unknown class 'control' of 'mixed' in 'nccl': fabric.yaml:3: expected one of urgent, bulk"},
        Mistake{"MixedIsNoName", NCCL "  mixed: a b\n",
                "'mixed' of 'nccl' is 'a b': fabric.yaml:3: expected at most 63 letters, digits, '.', '_' or '-'"},
        Mistake{"UnknownClearToSend", NCCL "  mixed: bulk\n  clear_to_send: contrl\n",
                "unknown class 'contrl' of 'clear_to_send' in 'nccl': fabric.yaml:4: did you mean 'control'? expected "
                "one of urgent, bulk, control"},
        Mistake{"ClearToSendIsMixed", NCCL "  clear_to_send: mixed\n",
                "unknown class 'mixed' of 'clear_to_send' in 'nccl': fabric.yaml:3: expected one of urgent, bulk, "
                "control"},
        Mistake{"SeparateIsNoFlag", NCCL "  separate_reduce_scatter: yes\n",
                "'separate_reduce_scatter' of 'nccl' is 'yes': fabric.yaml:3: expected true or false"},
        Mistake{"UnknownDropped", NCCL "  dropped: refused\n",
                "'dropped' of 'nccl' is 'refused': fabric.yaml:3: did you mean 'refuse'? expected one of report, "
                "refuse"}),
    case_name);

INSTANTIATE_TEST_SUITE_P(
    Groups, FabricError,
    ::testing::Values(
        Mistake{"NoList", NCCL "  groups: urgent\n", "'groups' of 'nccl' is 'urgent': fabric.yaml:3: expected a list"},
        Mistake{"RuleIsText", NCCL "  groups: [urgent]\n",
                "a rule of 'groups' is 'urgent': fabric.yaml:3: expected a mapping with group, class, operation, "
                "at_least, at_most"},
        Mistake{"NoGroup", NCCL "  groups:\n  - {class: bulk}\n",
                "no 'group' in a rule of 'groups': fabric.yaml:4: add 'group: ...'"},
        Mistake{"NoClass", NCCL "  groups:\n  - {group: a, class: bulk}\n  - {group: b}\n",
                "no 'class' in a rule of 'groups': fabric.yaml:5: add 'class: ...'"},
        Mistake{"UnknownKey", NCCL "  groups: [{group: a, classs: bulk}]\n",
                "unknown key 'classs' in a rule of 'groups': fabric.yaml:3: did you mean 'class'? expected one of "
                "group, class, operation, at_least, at_most"},
        Mistake{"UnknownClass", NCCL "  groups:\n  - {group: a, class: bulk}\n  - {group: 'mesh_tp*', class: urgnt}\n",
                "unknown class 'urgnt' of the groups 'mesh_tp*' in 'nccl': fabric.yaml:5: did you mean 'urgent'? "
                "expected one of urgent, bulk, mixed, none"},
        Mistake{"Control", NCCL "  groups: [{group: a, class: control}]\n",
                "unknown class 'control' of the groups 'a' in 'nccl': fabric.yaml:3: expected one of urgent, bulk, "
                "mixed, none"},
        Mistake{"Quotes", NCCL "  groups: [{group: 'a\"b', class: bulk}]\n",
                "'group' of a rule of 'groups' is 'a\"b': fabric.yaml:3: expected printable characters of ASCII but "
                "'\"' and '\\'"},
        Mistake{"UnknownOperation", NCCL "  groups: [{group: a, class: bulk, operation: allgathr}]\n",
                "'operation' of a rule of 'groups' is 'allgathr': fabric.yaml:3: did you mean 'allgather'? expected "
                "one of allreduce, broadcast, allgather, barrier, push, pull, reducescatter, reduce, gather, scatter, "
                "alltoall"},
        Mistake{"BadSize", NCCL "  groups: [{group: a, class: bulk, at_least: 1 MB}]\n",
                "'at_least' of a rule of 'groups' is '1 MB': fabric.yaml:3: expected a size such as '1500', '256 KiB' "
                "or '4 MiB'"},
        Mistake{"LessThanAtLeast", NCCL "  groups: [{group: a, class: bulk, at_least: 1 MiB, at_most: 1 KiB}]\n",
                "'at_most' of a rule of 'groups' is '1 KiB': fabric.yaml:3: expected at least 'at_least', 1 MiB"}),
    case_name);

std::string many_variables(int count) {
  std::string text = NCCL "  environment:\n";
  for (int i = 0; i < count; ++i) text += fmt::format("    NCCL_{}: 1\n", i);
  return text;
}

constexpr const char* kNoMapping = "expected a mapping from at most 256 variables to values";
constexpr const char* kNoValue =
    "expected printable characters of ASCII but '\"' and '\\', or null for a variable that is not to be set";

INSTANTIATE_TEST_SUITE_P(
    Environment, FabricError,
    ::testing::Values(
        Mistake{"NoMapping", NCCL "  environment: [NCCL_X]\n",
                fmt::format("'environment' of 'nccl' is a list: fabric.yaml:3: {}", kNoMapping)},
        Mistake{"Null", NCCL "  environment:\n",
                fmt::format("'environment' of 'nccl' is empty: fabric.yaml:3: {}", kNoMapping)},
        Mistake{"TooMany", many_variables(257),
                fmt::format("'environment' of 'nccl' is a mapping: fabric.yaml:4: {}", kNoMapping)},
        Mistake{"OtherLibrary", NCCL "  environment:\n    NCCL_X: 1\n    UCX_TLS: rc\n",
                "variable 'UCX_TLS' in 'environment': fabric.yaml:5: expected a name like NCCL_SOCKET_IFNAME"},
        Mistake{"SmallLetters", NCCL "  environment: {NCCL_x: 1}\n",
                "variable 'NCCL_x' in 'environment': fabric.yaml:3: expected a name like NCCL_SOCKET_IFNAME"},
        Mistake{"NoName", NCCL "  environment: {NCCL_: 1}\n",
                "variable 'NCCL_' in 'environment': fabric.yaml:3: expected a name like NCCL_SOCKET_IFNAME"},
        Mistake{"NameIsAList", NCCL "  environment: {[NCCL_X]: 1}\n",
                "variable '' in 'environment': fabric.yaml:3: expected a name like NCCL_SOCKET_IFNAME"},
        Mistake{"ValueIsAList", NCCL "  environment:\n    NCCL_X: [1]\n",
                fmt::format("the value of NCCL_X: fabric.yaml:4: {}", kNoValue)},
        Mistake{"EmptyValue", NCCL "  environment: {NCCL_X: ''}\n",
                fmt::format("the value of NCCL_X: fabric.yaml:3: {}", kNoValue)},
        Mistake{"LongValue", NCCL "  environment: {NCCL_X: " + std::string(4097, 'x') + "}\n",
                fmt::format("the value of NCCL_X: fabric.yaml:3: {}", kNoValue)},
        Mistake{"ValueOfTwoLines", NCCL "  environment: {NCCL_X: \"a\\nb\"}\n",
                fmt::format("the value of NCCL_X: fabric.yaml:3: {}", kNoValue)},
        Mistake{"LongName", NCCL "  environment: {NCCL_" + std::string(124, 'A') + ": 1}\n",
                fmt::format("variable 'NCCL_{}' in 'environment': fabric.yaml:3: expected a name like "
                            "NCCL_SOCKET_IFNAME",
                            std::string(124, 'A'))},
        Mistake{"Quotes", NCCL "  environment: {NCCL_X: 'a\"b'}\n",
                fmt::format("the value of NCCL_X: fabric.yaml:3: {}", kNoValue)},
        Mistake{"Backslash", NCCL "  environment: {NCCL_X: 'a\\b'}\n",
                fmt::format("the value of NCCL_X: fabric.yaml:3: {}", kNoValue)},
        Mistake{"TrafficClass", NCCL "  environment:\n    NCCL_DEBUG: INFO\n    NCCL_IB_TC: 106\n",
                "NCCL_IB_TC has a value in 'environment': fabric.yaml:5: it would put all groups into one class; give "
                "it null, or leave it out, which is the same"},
        Mistake{"Doubled", NCCL "  environment:\n    NCCL_X: 1\n    NCCL_X: null\n",
                "doubled variable 'NCCL_X': fabric.yaml:5: keep one of them"}),
    case_name);

Fabric parsed(const std::string& text) {
  Result<Fabric> fabric = parse(text, "fabric.yaml");
  EXPECT_TRUE(fabric.ok()) << fabric.status().to_string();
  return fabric.ok() ? *std::move(fabric) : Fabric();
}

TEST(NcclPolicy, IsEmptyWithoutTheSection) {
  for (const char* text : {HOST, HOST "nccl: {}\n", NCCL "  groups: []\n"}) {
    const Fabric fabric = parsed(text);
    EXPECT_EQ(fabric.nccl.line != 0, std::string(text) != HOST);
    EXPECT_THAT(fabric.nccl.groups, IsEmpty());
    EXPECT_THAT(fabric.nccl.environment, IsEmpty());
    EXPECT_FALSE(fabric.nccl.separate_reduce_scatter);
    EXPECT_FALSE(fabric.nccl.refuse_dropped);
    EXPECT_EQ(mixed_class(fabric.classes, fabric.nccl).name, "bulk");
    EXPECT_EQ(clear_to_send_class(fabric.classes, fabric.nccl).name, "urgent");
    EXPECT_EQ(to_yaml(fabric).find("nccl:") != std::string::npos, std::string(text) != HOST);
    EXPECT_EQ(to_yaml(parsed(to_yaml(fabric))), to_yaml(fabric));
  }
}

TEST(NcclPolicy, IsWrittenAsItWasRead) {
  const Fabric first = parsed(NCCL R"(  groups:
    - {group: "mesh_tp*", class: urgent}
    - {group: "[ab]? {x}: #", class: mixed, operation: reducescatter, at_least: 1 KiB, at_most: 3 MiB}
    - {group: "true", class: bulk, at_most: 1}
  mixed: urgent
  clear_to_send: control
  separate_reduce_scatter: true
  dropped: refuse
  environment: {NCCL_A: 22, NCCL_B: null, NCCL_C: "null", NCCL_D: true, NCCL_E: "=mlx5_0:1,mlx5_1 # x", NCCL_IB_TC: ~}
)");
  for (const Fabric& fabric : {first, parsed(to_yaml(first))}) {
    const NcclPolicy& policy = fabric.nccl;
    ASSERT_EQ(policy.groups.size(), 3u);
    const GroupRule &tp = policy.groups[0], &by_operation = policy.groups[1], &by_size = policy.groups[2];
    EXPECT_EQ(tp.group, "mesh_tp*");
    EXPECT_EQ(tp.cls, "urgent");
    EXPECT_TRUE(tp.is_enforceable());
    EXPECT_EQ(by_operation.group, "[ab]? {x}: #");
    EXPECT_EQ(by_operation.cls, "mixed");
    EXPECT_EQ(by_operation.operation, Operation::kReduceScatter);
    EXPECT_EQ(by_operation.at_least, kib(1));
    EXPECT_EQ(by_operation.at_most, mib(3));
    EXPECT_FALSE(by_operation.is_enforceable());
    EXPECT_EQ(by_size.group, "true");
    EXPECT_EQ(by_size.at_most, Bytes(1));
    EXPECT_FALSE(by_size.is_enforceable());
    EXPECT_EQ(policy.mixed, "urgent");
    EXPECT_EQ(policy.clear_to_send, "control");
    EXPECT_TRUE(policy.separate_reduce_scatter);
    EXPECT_TRUE(policy.refuse_dropped);
    EXPECT_THAT(
        policy.environment,
        ElementsAre(Pair("NCCL_A", "22"), Pair("NCCL_B", std::nullopt), Pair("NCCL_C", "null"), Pair("NCCL_D", "true"),
                    Pair("NCCL_E", "=mlx5_0:1,mlx5_1 # x"), Pair("NCCL_IB_TC", std::nullopt)));
    EXPECT_EQ(to_yaml(fabric), to_yaml(first));
  }
  EXPECT_EQ(first.nccl.groups[1].line, first.nccl.groups[0].line + 1);
}

TEST(NcclPolicy, TakesTheLongestAndTheNarrowest) {
  const std::string name = "NCCL_" + std::string(123, 'A'), value(4096, 'x');
  const Fabric fabric =
      parsed(NCCL "  groups: [{group: a, class: bulk, at_least: 1 KiB, at_most: 1 KiB}]\n  environment: {" + name +
             ": " + value + "}\n");
  EXPECT_THAT(fabric.nccl.environment, ElementsAre(Pair(name, value)));
  ASSERT_EQ(fabric.nccl.groups.size(), 1u);
  EXPECT_EQ(fabric.nccl.groups[0].at_least, fabric.nccl.groups[0].at_most);
  EXPECT_EQ(parsed(many_variables(256)).nccl.environment.size(), 256u);
}

TEST(NcclPolicy, ChoosesClassesByNameThenByWhatTheyAre) {
  const auto with = [](const char* control, const char* nccl) {
    return parsed(
        fmt::format("classes:\n  data:\n    - {{name: a, dscp: 1, pcp: 1, lossless: false}}\n"
                    "    - {{name: mixed, dscp: 2, pcp: 2}}\n    - {{name: b, dscp: 3, pcp: 3}}\n"
                    "  control: {{dscp: 9, pcp: 6, lossless: {}}}\n{}{}",
                    control, HOST, nccl));
  };
  const auto mixed = [](const Fabric& fabric) { return mixed_class(fabric.classes, fabric.nccl).name; };
  const auto ready = [](const Fabric& fabric) { return clear_to_send_class(fabric.classes, fabric.nccl).name; };
  EXPECT_EQ(mixed(with("true", "")), "mixed");
  EXPECT_EQ(mixed(with("true", "nccl: {mixed: b}")), "b");
  EXPECT_EQ(ready(with("true", "")), "control");
  EXPECT_EQ(ready(with("false", "")), "mixed") << "the most urgent that is lossless";
  EXPECT_EQ(ready(with("false", "nccl: {clear_to_send: control}")), "control");
  EXPECT_EQ(ready(with("true", "nccl: {clear_to_send: a}")), "a");
  const Fabric lossy = parsed(
      "classes: {data: [{name: a, dscp: 1, pcp: 1, lossless: false}, {name: b, dscp: 2, pcp: 2, lossless: "
      "false}]}\n" HOST);
  EXPECT_EQ(ready(lossy), "a");
}

TEST(NcclPolicy, DefaultRulesEndWithOneForEveryGroup) {
  const ClassTable classes = parsed(HOST).classes;
  for (const bool separate : {false, true}) {
    const std::vector<GroupRule> rules = default_group_rules(classes, separate);
    ASSERT_FALSE(rules.empty());
    EXPECT_EQ(rules.back().group, "*");
    EXPECT_EQ(rules.back().cls, kMixed);
    for (const GroupRule& rule : rules) {
      EXPECT_TRUE(rule.is_enforceable()) << rule.group;
      EXPECT_EQ(rule.line, 0) << rule.group;
      EXPECT_TRUE(separate || rule.shared.empty()) << rule.group;
    }
  }
}

}  // namespace
}  // namespace tensorlane::fabric
