// Whether NCCL, as a process of this host finds it, sends its groups in the classes of the fabric. docs/nccl.md
// lists what its rules, N1 to N8, look at.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/files/place.h"
#include "common/nccl/settings.h"

namespace tensorlane::nccl {

// NCCL_VERSION_CODE of 2.9 and later: 22807 is 2.28.7.
inline constexpr int kFirstWithTrafficClass = 22700, kFirstWithEnvPlugin = 22807;

// A class of the fabric, as NCCL is told of it.
struct Class {
  std::string name;
  unsigned traffic_class = 0;  // DSCP * 4 + 2
  unsigned service_level = 0;
};

struct Subject {
  Sources sources;
  // All that traffic may have, control included. Empty: unknown, and values are not compared.
  std::vector<Class> classes;
  // What the env plugin says of variables where it is loaded; without a value: that they are not set.
  std::map<std::string, std::optional<std::string>> overridden;
  // That NCCL_IB_SL is to have, where that is known.
  std::optional<unsigned> service_level;
  int version = 0;  // of libnccl; 0: unknown
};

// In no order that means anything. Reads files below sources.root, and changes nothing.
std::vector<Finding> preflight(const Subject& subject);

// Whether NCCL loads tensorlane's env plugin, if it knows env plugins: it is named, and there. One that is named
// without a path is looked for in LD_LIBRARY_PATH and in the system's usual folders.
bool loads_own_plugin(const Settings& settings, const Subject& subject);

// Names of the RDMA devices of a host, sorted.
std::vector<std::string> rdma_devices(const std::string& root);
// What it means that there is none. No finding of preflight(): another host than that of the job may be looked at.
const char* no_rdma_device();

// The traffic class that an RDMA device forces upon all its queue pairs; 0: none.
unsigned forced_traffic_class(const std::string& root, const std::string& device);

// "2.28.7"
std::string version_text(int version);

// What is read of files in which a version is sought, of all of them together.
struct Budget {
  int files = 64;
  std::uint64_t bytes = std::uint64_t{2} << 30;  // without the holes of sparse files
  bool is_spent() const { return files == 0 || bytes == 0; }
};

// NCCL_VERSION_CODE of a shared object, by the text in it: nothing of it is executed. 0 where it has none, or is none,
// or where the budget ends before.
int version_of(const files::Place& place, Budget& budget);

}  // namespace tensorlane::nccl
