// Graphs for the tests of orders: the papers' figures, and random ones.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>
#include <span>
#include <string>
#include <vector>

#include "simulator/orders/graph.h"

namespace tensorlane::orders {

inline Description recv(std::string name, std::int64_t time) {
  return {std::move(name), Kind::kRecv, "network", Duration(time), Bytes(8), {}};
}

inline Description compute(std::string name, std::int64_t time, std::vector<std::string> inputs) {
  return {std::move(name), Kind::kCompute, "gpu", Duration(time), Bytes(0), std::move(inputs)};
}

inline Description send(std::string name, std::int64_t time, std::vector<std::string> inputs) {
  return {std::move(name), Kind::kSend, "uplink", Duration(time), Bytes(0), std::move(inputs)};
}

inline Graph build(std::vector<Description> operations) {
  auto graph = Graph::build(std::move(operations));
  EXPECT_TRUE(graph.ok()) << graph.status().to_string();
  return graph.ok() ? *std::move(graph) : Graph();
}

inline Operation find(const Graph& graph, const std::string& name) {
  for (const Operation op : graph.topological())
    if (graph.name(op) == name) return op;
  ADD_FAILURE() << "no operation " << name;
  return Operation(0);
}

inline std::vector<std::string> names(const Graph& graph, std::span<const Operation> operations) {
  std::vector<std::string> all;
  for (const Operation op : operations) all.push_back(graph.name(op));
  return all;
}

// TicTac, figure 1a.
inline Graph figure_1a(std::int64_t recv1 = 2, std::int64_t recv2 = 3, std::int64_t op1 = 4, std::int64_t op2 = 1) {
  // recv2 stands first, so that no order of the list helps.
  return build({recv("recv2", recv2), recv("recv1", recv1), compute("op1", op1, {"recv1"}),
                compute("op2", op2, {"op1", "recv2"})});
}

// TicTac, figure 4a: two branches, which an operation joins.
inline Graph figure_4a(std::int64_t a, std::int64_t b, std::int64_t op1, std::int64_t op2) {
  return build({recv("recvA", a), recv("recvB", b), compute("op1", op1, {"recvA"}), compute("op2", op2, {"recvB"}),
                compute("op3", 1, {"op1", "op2"})});
}

// TicTac, figure 4b: op1 waits for A and B, op2 for op1 and C, op3 for op2 and D. D stands first.
inline Graph figure_4b() {
  return build({recv("recvD", 1), recv("recvC", 2), recv("recvB", 4), recv("recvA", 3),
                compute("op1", 5, {"recvA", "recvB"}), compute("op2", 5, {"op1", "recvC"}),
                compute("op3", 5, {"op2", "recvD"})});
}

// Recv operations, and compute operations of which each waits for some of those and some before it.
inline Graph random_graph(std::uint64_t seed, int recvs, int computes, std::int64_t longest = 20) {
  std::mt19937_64 random(seed);
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  std::vector<Description> operations;
  for (int r = 0; r < recvs; ++r) operations.push_back(recv(fmt::format("r{}", r), 1 + below(longest)));
  for (int c = 0; c < computes; ++c) {
    std::vector<std::string> inputs;
    if (c > 0 && below(4) > 0) inputs.push_back(fmt::format("c{}", below(c)));
    if (c > 0 && below(4) == 0) inputs.push_back(fmt::format("c{}", below(c)));
    if (below(3) > 0 || inputs.empty()) inputs.push_back(fmt::format("r{}", below(recvs)));
    operations.push_back(compute(fmt::format("c{}", c), below(longest), inputs));
  }
  return build(std::move(operations));
}

}  // namespace tensorlane::orders
