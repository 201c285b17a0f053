// The fabric file's switches and links as the analysis needs them: ways between hosts, and the names of ports.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/fabric/fabric.h"

namespace tensorlane::verify {

// A link in one direction.
struct Leg {
  std::string from, to;            // nodes
  std::string from_port, to_port;  // empty: the file does not say
  BitsPerSecond speed{};
};
using Way = std::vector<std::size_t>;  // positions of legs, from host to host

class Topology {
 public:
  // Ways between two hosts that are kept at most.
  static constexpr std::size_t kMaxWays = 64;

  Topology() = default;
  explicit Topology(const fabric::Fabric& fabric);

  bool empty() const { return legs_.empty(); }
  const Leg& leg(std::size_t index) const { return legs_[index]; }
  // All shortest ways from rail to rail; empty: the file describes none.
  const std::vector<Way>& ways(const std::string& from, const std::string& to, std::size_t rail) const;
  // The switches on a way, in order.
  std::vector<std::string> switches_on(const Way& way) const;
  bool is_switch(const std::string& name) const { return switches_.contains(name); }
  // The switch that the file gives this numeric address; null: none.
  const std::string* owner(const std::string& address) const;
  std::optional<fabric::Nos> nos(const std::string& name) const;
  // Legs between two neighbours; more than one where links are parallel.
  std::vector<std::size_t> legs_between(const std::string& from, const std::string& to) const;

 private:
  std::vector<std::size_t> first_legs(const std::string& host, std::size_t rail, bool outwards) const;

  std::vector<Leg> legs_;
  std::map<std::string, std::vector<std::size_t>> from_, to_;
  std::map<std::string, std::optional<fabric::Nos>> switches_;
  std::map<std::string, std::string> owners_;  // of addresses
  std::map<std::string, std::size_t> rails_;   // of each host
  mutable std::map<std::string, std::vector<Way>> ways_;
};

}  // namespace tensorlane::verify
