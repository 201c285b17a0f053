// NCCL's variables, as NCCL itself finds them (NCCL 2.28 to 2.32, src/misc/param.cc).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tensorlane::nccl {

// What is wrong with how NCCL is set up, for the classes of the fabric.
enum class Severity : std::uint8_t {
  kError,    // classes do not act
  kWarning,  // they act otherwise than the fabric file says, or something is not done that was meant
  kNote,
};

struct Finding {
  std::string rule;  // "N1" to "N8": docs/nccl.md lists them
  Severity severity = Severity::kError;
  std::string place;    // "NCCL_IB_TC in /etc/nccl.conf:3"
  std::string message;  // what is wrong and what that does
  std::string fix;      // what to write instead
};

struct Setting {
  std::string value;
  std::string place;  // "environment", "/etc/nccl.conf:3"
};

using Environment = std::map<std::string, std::string>;

// Takes up NAME=VALUE; of several with one name the first holds, as for getenv().
void add_variable(Environment& environment, std::string_view entry);
// This process's. Empty after clearenv().
Environment own_environment();
// The folders of LD_LIBRARY_PATH that begin with /. No more than 1024 are taken.
std::vector<std::string> library_folders(const Environment& environment);
// These, and the folders that the loader of a usual system looks into after them, in its order.
std::vector<std::string> loader_folders(const Environment& environment);

// Where a process gets its variables from.
struct Sources {
  std::string root;  // a folder that stands for / (common/files/place.h); empty: this host
  std::string home;  // of the user in the user database; empty: there is none
  Environment environment;
};

// The environment, then the file that NCCL_CONF_FILE names or else ~/.nccl.conf, then /etc/nccl.conf: what comes first
// holds, and within a file, too. ~ is the home of the user database up to NCCL 2.28, and what HOME says, where it says
// something, from 2.30 on; for a version between these, or 0 (unknown), both are looked at. Adds to `findings` what the
// files say in vain and which of them cannot be read; files of more than 1 MiB are refused.
class Settings {
 public:
  Settings(const Sources& sources, int version, std::vector<Finding>& findings);

  // Null where the variable is not set, or empty, which NCCL takes for not set.
  const Setting* find(const std::string& name) const;
  // As NCCL reads numbers: base 0, and what does not begin with a number is 0. Unset where find() is null, and where 64
  // bits do not hold the number, which NCCL takes for not set.
  std::optional<std::int64_t> number(const std::string& name) const;
  // A value that holds whatever the environment and the files say; without one, the variable is not set.
  void force(const std::string& name, const std::optional<std::string>& value, const std::string& place);

  // Whether any name starts so.
  bool has_prefix(const std::string& prefix) const;

 private:
  void read_file(const std::string& root, const std::string& path, bool named, std::vector<Finding>& findings);

  std::map<std::string, Setting> settings_;
};

}  // namespace tensorlane::nccl
