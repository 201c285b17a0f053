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
    Launcher{"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE", true},
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
  if (environment(kTorchrun.rank) != nullptr || environment(kTorchrun.world_size) != nullptr) return kTorchrun;
  const auto* other = std::ranges::find_if(kOthers, [](const Launcher& l) { return environment(l.world_size); });
  return other != kOthers.end() ? *other : kTorchrun;
}

const Launcher* contradicted() {
  if ((environment(kTorchrun.rank) == nullptr) == (environment(kTorchrun.world_size) == nullptr)) return nullptr;
  const auto* other = std::ranges::find_if(kOthers, [](const Launcher& l) { return environment(l.world_size); });
  return other == kOthers.end() || environment(other->world_size) == std::string_view("1") ? nullptr : other;
}

Result<std::uint32_t> tasks_here(const std::string& text) {
  const Status bad(Code::kInvalidArgument, "this is no number of tasks", "", "");
  const char* node_text = environment("SLURM_NODEID");
  std::string_view node_left = node_text != nullptr ? node_text : "0", left = text;
  std::optional<std::uint32_t> node = cut_number(node_left);
  if (!node || !node_left.empty()) return bad;
  std::optional<std::uint32_t> here;
  std::uint64_t before = 0;  // nodes
  do {
    const std::optional<std::uint32_t> tasks = cut_number(left);
    std::optional<std::uint32_t> nodes = 1;
    if (cut(left, "(x")) {
      nodes = cut_number(left);
      if (!cut(left, ")")) return bad;
    }
    if (!tasks || !nodes || *nodes == 0) return bad;
    if (!here && *node < before + *nodes) here = tasks;
    before += *nodes;
  } while (cut(left, ","));
  if (!here || !left.empty()) return bad;
  return *here;
}

}  // namespace tensorlane::client
