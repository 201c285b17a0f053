#include "client-lib/src/launcher.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <optional>
#include <string_view>

namespace tensorlane::client {
namespace {

constexpr Launcher kTorchrun{"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
// By what says the size of the world.
constexpr std::array kOthers{
    Launcher{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
             "OMPI_COMM_WORLD_LOCAL_SIZE"},
    Launcher{"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"},
};

// The number that `text` begins with, which is cut off; nothing where it does not begin with one.
std::optional<std::uint32_t> cut_number(std::string_view& text) {
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

bool cut(std::string_view& text, std::string_view what) {
  if (!text.starts_with(what)) return false;
  text.remove_prefix(what.size());
  return true;
}

}  // namespace

const char* environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

const Launcher& launcher() {
  const auto& t = kTorchrun;
  const std::array variables{t.rank, t.world_size, t.local_rank, t.local_world_size};
  if (std::ranges::any_of(variables, [](const char* name) { return environment(name) != nullptr; })) return t;
  const auto* other = std::ranges::find_if(kOthers, [](const Launcher& l) { return environment(l.world_size); });
  return other != kOthers.end() ? *other : t;
}

Result<std::uint32_t> tasks_here(const std::string& text) {
  const Status bad(Code::kInvalidArgument, "this is no number of tasks", "", "");
  const char* node_text = environment("SLURM_NODEID");
  std::string_view node_left = node_text != nullptr ? node_text : "0", left = text;
  std::optional<std::uint32_t> node = cut_number(node_left);
  if (!node || !node_left.empty()) return bad;
  while (true) {
    const std::optional<std::uint32_t> tasks = cut_number(left);
    std::optional<std::uint32_t> nodes = 1;
    if (cut(left, "(x")) {
      nodes = cut_number(left);
      if (!cut(left, ")")) return bad;
    }
    if (!tasks || !nodes) return bad;
    if (*node < *nodes) return *tasks;
    *node -= *nodes;
    if (!cut(left, ",")) return bad;
  }
}

}  // namespace tensorlane::client
