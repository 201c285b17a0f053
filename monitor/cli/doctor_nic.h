// What the tools of a host say about the QoS of one NIC, and how it is changed with the same tool.
#pragma once

#include <optional>
#include <string>

#include "switch-config/lint/languages.h"

namespace tensorlane::cli {

// By NVIDIA's `mlnx_qos` where there is one, else by iproute2's `dcb`.
struct NicQos {
  std::string interface;
  lint::Language language = lint::Language::kMlnxQos;  // or kDcb
  std::string text;                                    // what the tool printed

  bool by_dcb() const { return language == lint::Language::kDcb; }
  // For messages: the command that shows it.
  std::string place() const;
  // What the tool calls the map of DSCPs.
  const char* map_name() const { return by_dcb() ? "dscp-prio" : "dscp2prio"; }
  // The tool's own word that the NIC trusts DSCP: unset where only the map can say it.
  std::optional<bool> trusts_dscp() const;

  // Commands. `mask`: bit p is priority p.
  std::string pfc_command(unsigned mask) const;
  std::string trust_command() const;
  std::string map_command(unsigned dscp, unsigned priority) const;
};

// Of this host, or with a `root` of the copies ROOT/mlnx_qos/INTERFACE or ROOT/dcb/INTERFACE (what `dcb pfc show dev
// INTERFACE`, and so on, printed, in one file). Unset where neither can be had.
std::optional<NicQos> read_nic_qos(const std::string& root, const std::string& interface);

}  // namespace tensorlane::cli
