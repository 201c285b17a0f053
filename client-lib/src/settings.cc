#include "client-lib/src/settings.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "client-lib/src/launcher.h"
#include "common/files/careful.h"
#include "common/protocol/session.h"

namespace tensorlane::client {
namespace {

Status invalid(const std::string& field, const std::string& value, std::string fix) {
  return Status(Code::kInvalidArgument, "the configuration is wrong",
                field + " is " + (value.empty() ? "empty" : "'" + value + "'"), std::move(fix));
}

// A count out of the field, else out of the variable, else the default.
Result<std::uint32_t> number(const char* field, int given, const char* variable, std::uint32_t otherwise) {
  if (given >= 0) return static_cast<std::uint32_t>(given);
  if (given != -1)
    return invalid(field, std::to_string(given), std::string("use a number from 0, or -1 for ") + variable);
  const char* text = environment(variable);
  if (text == nullptr) return otherwise;
  char* end = nullptr;
  errno = 0;
  const long value = std::strtol(text, &end, 10);
  if (errno != 0 || *end != '\0' || value < 0 || value > 65536)
    return invalid(variable, text, "set it to a number from 0 to 65536");
  return static_cast<std::uint32_t>(value);
}

// As number(), of a variable that may speak of all hosts.
Result<std::uint32_t> local_world_size(int given, const Launcher& by) {
  const char* const variable = by.local_world_size;
  const char* text = environment(variable);
  if (given != -1 || text == nullptr || !by.speaks_of_all_hosts) return number("local_world_size", given, variable, 1);
  const Result<std::uint32_t> tasks = tasks_here(text);
  if (!tasks.ok())
    return invalid(variable, text, "start the ranks by srun, or set RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE");
  return *tasks;
}

Result<double> seconds_of(double given) {
  if (std::isnan(given))
    return invalid("timeout_seconds", "nan", "use seconds, or a negative number for TENSORLANE_TIMEOUT");
  if (given >= 0) return given;
  const char* text = environment("TENSORLANE_TIMEOUT");
  if (text == nullptr) return 60.0;
  char* end = nullptr;
  const double value = std::strtod(text, &end);
  if (*end != '\0' || !(value >= 0)) return invalid("TENSORLANE_TIMEOUT", text, "set it to seconds, e.g. 60");
  return value;
}

Result<std::string> text_of(const char* field, const char* given, std::initializer_list<const char*> variables,
                            const char* otherwise) {
  std::string name = field, value = otherwise;
  if (given != nullptr) {
    value = given;
  } else {
    for (const char* variable : variables) {
      const char* text = environment(variable);
      if (text == nullptr) continue;
      name = variable;
      value = text;
      break;
    }
  }
  if (value.size() > protocol::kMaxName) {
    return invalid(
        name, value.substr(0, 32) + "...",
        "it has " + std::to_string(value.size()) + " bytes, the limit is " + std::to_string(protocol::kMaxName));
  }
  return value;
}

Result<std::string> secret_of(const char* given) {
  std::string secret;
  if (given != nullptr) {
    secret = given;
  } else if (const char* text = environment("TENSORLANE_JOB_SECRET")) {
    secret = text;
  } else if (const char* path = environment("TENSORLANE_JOB_SECRET_FILE")) {
    TL_ASSIGN_OR_RETURN(
        secret, files::read(path, "the file of TENSORLANE_JOB_SECRET_FILE", files::Care::kSharedSecret, kib(64)));
    while (!secret.empty() && (secret.back() == '\n' || secret.back() == '\r')) secret.pop_back();
  }
  if (secret.size() > protocol::kMaxSecret) {
    return Status(Code::kInvalidArgument, "the configuration is wrong",
                  "the job's secret has " + std::to_string(secret.size()) + " bytes",
                  "use at most " + std::to_string(protocol::kMaxSecret));
  }
  return secret;
}

// Spinning pays only where no other thread wants the core: a rank needs one core, and the daemon one.
Result<Duration> spin_of(std::uint32_t local_world_size) {
  if (const char* text = environment("TENSORLANE_SPIN_US")) {
    char* end = nullptr;
    const long value = std::strtol(text, &end, 10);
    if (*end != '\0' || value < 0 || value > 1'000'000)
      return invalid("TENSORLANE_SPIN_US", text, "set it to microseconds, 0 to 1000000");
    return microseconds(value);
  }
  cpu_set_t mask;
  const int cores = sched_getaffinity(0, sizeof mask, &mask) == 0 ? CPU_COUNT(&mask) : 1;
  const auto wanted = static_cast<int>(local_world_size) + 1;
  return cores > wanted ? microseconds(20) : microseconds(0);
}

Result<bool> gpu_sums() {
  const char* text = environment("TENSORLANE_GPU_SUMS");
  if (text == nullptr || std::strcmp(text, "0") == 0) return false;
  if (std::strcmp(text, "1") == 0) return true;
  return invalid("TENSORLANE_GPU_SUMS", text, "set it to 1 or 0, alike on all ranks");
}

// Not by guessing who is right: each rank would be alone, or would wait for others that have guessed otherwise.
Status check_launcher(const tl_config_t& config, const Launcher& by) {
  const Launcher* other = contradicted();
  const bool has_rank = environment(by.rank) != nullptr;
  const bool needed = has_rank ? config.world_size == -1 : config.rank == -1;
  if (other == nullptr || !needed) return {};
  const char* const set = has_rank ? by.rank : by.world_size;
  const char* const missing = has_rank ? by.world_size : by.rank;
  return invalid(std::string(other->world_size) + " is '" + environment(other->world_size) + "' and " + missing +
                     " is not set, but " + set,
                 environment(set), std::string("unset ") + set + ", or set " + missing + " too");
}

Status check_ranks(const Settings& s, const Launcher& by) {
  const auto text = [](std::uint32_t n) { return std::to_string(n); };
  const auto both = [](const char* field, const char* variable) { return std::string(field) + " (" + variable + ")"; };
  if (s.world_size == 0) return invalid(both("world_size", by.world_size), "0", "set it to the number of ranks");
  if (s.rank >= s.world_size)
    return invalid(both("rank", by.rank), text(s.rank), "set it below the world size " + text(s.world_size));
  if (s.local_world_size == 0 || s.local_world_size > s.world_size) {
    return invalid(both("local_world_size", by.local_world_size), text(s.local_world_size),
                   "set it to 1.." + text(s.world_size));
  }
  if (s.local_rank >= s.local_world_size) {
    return invalid(both("local_rank", by.local_rank), text(s.local_rank),
                   "set it below the local world size " + text(s.local_world_size));
  }
  return {};
}

}  // namespace

Result<Settings> resolve(const tl_config_t* given) {
  tl_config_t config = TL_CONFIG_INIT;
  if (given != nullptr) {
    if (given->version != config.version) {
      return Status(Code::kVersionMismatch, "the program was built with another tensorlane.h",
                    "its tl_config_t has version " + std::to_string(given->version) + ", the library's " +
                        std::to_string(config.version),
                    "build it again");
    }
    if (given->size < sizeof config.size + sizeof config.version) {
      return invalid("size", std::to_string(given->size), "initialise tl_config_t with TL_CONFIG_INIT");
    }
    std::memcpy(&config, given, std::min(given->size, sizeof config));
  }
  Settings s;
  const Launcher& by = launcher();
  TL_RETURN_IF_ERROR(check_launcher(config, by));
  TL_ASSIGN_OR_RETURN(s.rank, number("rank", config.rank, by.rank, 0));
  TL_ASSIGN_OR_RETURN(s.world_size, number("world_size", config.world_size, by.world_size, 1));
  TL_ASSIGN_OR_RETURN(s.local_rank, number("local_rank", config.local_rank, by.local_rank, 0));
  TL_ASSIGN_OR_RETURN(s.local_world_size, local_world_size(config.local_world_size, by));
  if (config.rank == -1 && environment(by.rank) == nullptr && s.world_size > 1)
    return invalid(by.rank, "", "set it to this process's rank, from 0: there are " + std::to_string(s.world_size));
  TL_RETURN_IF_ERROR(check_ranks(s, by));
  TL_ASSIGN_OR_RETURN(s.job, text_of("job", config.job, {"TENSORLANE_JOB", "TORCHELASTIC_RUN_ID"}, "default"));
  if (s.job.empty()) return invalid("job", "", "name the job, or set TENSORLANE_JOB");
  TL_ASSIGN_OR_RETURN(s.secret, secret_of(config.secret));
  TL_ASSIGN_OR_RETURN(s.leader, text_of("leader", config.leader, {"MASTER_ADDR"}, ""));
  TL_ASSIGN_OR_RETURN(const std::uint32_t port, number("leader_port", config.leader_port, "MASTER_PORT", 0));
  if (port > 65535) return invalid("leader_port (MASTER_PORT)", std::to_string(port), "set it to 1..65535");
  s.leader_port = static_cast<std::uint16_t>(port);
  TL_ASSIGN_OR_RETURN(s.socket,
                      text_of("socket", config.socket, {"TENSORLANE_SOCKET"}, "/run/tensorlane/tensorlaned.sock"));
  TL_ASSIGN_OR_RETURN(const double timeout, seconds_of(config.timeout_seconds));
  s.timeout = Duration(static_cast<std::int64_t>(std::min(timeout, 1e6) * 1e9));
  TL_ASSIGN_OR_RETURN(s.spin, spin_of(s.local_world_size));
  TL_ASSIGN_OR_RETURN(s.gpu_sums, gpu_sums());
  return s;
}

}  // namespace tensorlane::client
