#include "daemon/transport/dpdk/ethdev/eal_arguments.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <set>
#include <string_view>

namespace tensorlane::dpdk {
namespace {

constexpr std::uint64_t kDefaultMemory = 256;  // MiB
constexpr int kMaxCpu = 128;                   // EAL counts no further

enum class Takes : std::uint8_t { kNothing, kValue, kMaybe, kRefused };
struct Option {
  std::string_view name;
  Takes takes;
  std::string_view why = {};  // refused
};

constexpr std::string_view kEnds = "it prints something and ends the process";
constexpr std::string_view kThreads = "the daemon's lanes are the only threads that drive ports";
constexpr std::array kOptions = {
    Option{"-a", Takes::kValue},
    Option{"--allow", Takes::kValue},
    Option{"-b", Takes::kValue},
    Option{"--block", Takes::kValue},
    Option{"-d", Takes::kValue},
    Option{"-m", Takes::kValue},
    Option{"-n", Takes::kValue},
    Option{"-r", Takes::kValue},
    Option{"--base-virtaddr", Takes::kValue},
    Option{"--file-prefix", Takes::kValue},
    Option{"--force-max-simd-bitwidth", Takes::kValue},
    Option{"--huge-dir", Takes::kValue},
    Option{"--huge-unlink", Takes::kMaybe},
    Option{"--in-memory", Takes::kNothing},
    Option{"--iova-mode", Takes::kValue},
    Option{"--legacy-mem", Takes::kNothing},
    Option{"--log-level", Takes::kValue},
    Option{"--match-allocations", Takes::kNothing},
    Option{"--mbuf-pool-ops-name", Takes::kValue},
    Option{"--no-hpet", Takes::kNothing},
    Option{"--no-huge", Takes::kNothing},
    Option{"--no-pci", Takes::kNothing},
    Option{"--no-shconf", Takes::kNothing},
    Option{"--no-telemetry", Takes::kNothing},
    Option{"--single-file-segments", Takes::kNothing},
    Option{"--socket-limit", Takes::kValue},
    Option{"--socket-mem", Takes::kValue},
    Option{"--telemetry", Takes::kNothing},
    Option{"--vdev", Takes::kValue},
    Option{"--vfio-intr", Takes::kValue},
    Option{"--vfio-vf-token", Takes::kValue},
    Option{"-h", Takes::kRefused, kEnds},
    Option{"--help", Takes::kRefused, kEnds},
    Option{"-v", Takes::kRefused, kEnds},
    Option{"--version", Takes::kRefused, kEnds},
    Option{"-c", Takes::kRefused, kThreads},
    Option{"-l", Takes::kRefused, kThreads},
    Option{"--lcores", Takes::kRefused, kThreads},
    Option{"--main-lcore", Takes::kRefused, kThreads},
    Option{"-s", Takes::kRefused, kThreads},
    Option{"-S", Takes::kRefused, kThreads},
    Option{"--huge-worker-stack", Takes::kRefused, kThreads},
    Option{"--proc-type", Takes::kRefused, "the daemon shares its devices with no other process"},
    Option{"--syslog", Takes::kRefused, "DPDK's messages go to the daemon's log"},
};

Status wrong(std::string what, std::string_view argument, std::string fix = "correct the arguments of DPDK's EAL") {
  return {Code::kInvalidArgument, std::move(what), std::string(argument), std::move(fix)};
}

Status check_value(std::string_view option, std::string_view value) {
  if (option == "-m" || option == "-n" || option == "-r") {
    std::uint32_t number = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (error != std::errc() || end != value.data() + value.size() || number == 0)
      return wrong(fmt::format("\"{}\" is no number above 0", value), option);
  }
  // EAL lists its logs then, and ends the process.
  if (option == "--log-level" && value == "help") return wrong(fmt::format("this value is refused: {}", kEnds), option);
  if (option == "--iova-mode" && value != "pa" && value != "va") return wrong("the mode is pa or va", option);
  if (option == "--file-prefix" && value.find_first_of("/%") != std::string_view::npos)
    return wrong("a file prefix has no / and no %", option);
  return {};
}

// Arguments one by one.
class Reader {
 public:
  explicit Reader(const std::vector<std::string>& given) : given_(given) {}

  Status read() {
    for (at_ = 0; at_ < given_.size(); ++at_) TL_RETURN_IF_ERROR(read_one(given_[at_]));
    return {};
  }
  bool has(std::initializer_list<std::string_view> names) const {
    return std::any_of(names.begin(), names.end(), [&](std::string_view name) { return seen_.contains(name); });
  }
  std::optional<std::uint64_t> memory() const { return memory_; }

 private:
  Status read_one(std::string_view argument) {
    // For EAL an argument ends at a zero.
    if (std::ranges::any_of(argument, [](char c) { return (c >= 0 && c < ' ') || c == 127; }))
      return {Code::kInvalidArgument, "there is a control character in an argument",
              std::string(argument.substr(0, argument.find('\0'))), "leave it out"};
    const bool is_long = argument.starts_with("--");
    std::string_view name = argument, value;
    bool joined = false;
    if (const std::size_t equals = argument.find('='); is_long && equals != std::string_view::npos) {
      name = argument.substr(0, equals);
      value = argument.substr(equals + 1);
      joined = true;
    } else if (!is_long && argument.starts_with('-') && argument.size() > 2) {
      name = argument.substr(0, 2);
      value = argument.substr(2);
      joined = true;
    }
    const auto* const option =
        std::find_if(kOptions.begin(), kOptions.end(), [&](const Option& one) { return one.name == name; });
    if (option == kOptions.end())
      return wrong("DPDK's EAL has no such argument, or the daemon does not know it", argument);
    if (option->takes == Takes::kRefused)
      return wrong(fmt::format("this argument is refused: {}", option->why), argument, "leave it out");
    if (option->takes == Takes::kNothing && joined) return wrong("the argument takes no value", argument);
    if (option->takes == Takes::kValue && !joined) {
      if (at_ + 1 == given_.size()) return wrong("the argument lacks its value", argument);
      value = given_[++at_];
      joined = true;
    }
    if (option->takes == Takes::kValue && value.empty()) return wrong("the argument lacks its value", argument);
    TL_RETURN_IF_ERROR(check_value(name, value));
    if (name == "-m") memory_ = std::stoull(std::string(value));
    seen_.insert(option->name);
    return {};
  }

  const std::vector<std::string>& given_;
  std::size_t at_ = 0;
  std::set<std::string_view> seen_;
  std::optional<std::uint64_t> memory_;
};

std::string one_lcore(const std::vector<int>& cpus) {
  std::string list;
  for (const int cpu : cpus)
    if (cpu < kMaxCpu) list += fmt::format("{}{}", list.empty() ? "" : ",", cpu);
  return "--lcores=0@(" + list + ")";
}

}  // namespace

Result<std::vector<std::string>> eal_arguments(const std::vector<std::string>& given, const EalContext& context) {
  Reader reader(given);
  TL_RETURN_IF_ERROR(reader.read());
  std::vector<std::string> all = given;
  bool no_huge = reader.has({"--no-huge"});
  const bool about_memory = reader.has({"--in-memory", "--huge-dir", "--huge-unlink", "--socket-mem", "--legacy-mem",
                                        "--single-file-segments", "--match-allocations", "--file-prefix"});
  if (!no_huge && !context.huge_pages && !reader.has({"--in-memory", "--huge-dir", "--huge-unlink", "--socket-mem"})) {
    all.emplace_back("--no-huge");
    no_huge = true;
  }
  if (no_huge) {
    const std::uint64_t memory = reader.memory().value_or(kDefaultMemory);
    if (!reader.memory()) all.insert(all.end(), {"-m", fmt::format("{}", memory)});
    if (!reader.has({"--no-shconf"})) all.emplace_back("--no-shconf");
    if (context.available_memory.value != 0 && memory > context.available_memory.value >> 20)
      return Status(Code::kResourceExhausted,
                    fmt::format("DPDK is to have {} MiB of memory, and the host has {} MiB left", memory,
                                context.available_memory.value >> 20),
                    "-m", "give it less");
  } else if (!about_memory) {
    all.emplace_back("--in-memory");
  }
  if (!reader.has({"--no-pci", "-a", "--allow", "-b", "--block"})) all.emplace_back("--no-pci");
  if (!reader.has({"--file-prefix"})) all.push_back(fmt::format("--file-prefix=tensorlaned-{}", context.process));
  if (!reader.has({"--telemetry", "--no-telemetry"})) all.emplace_back("--no-telemetry");
  all.push_back(one_lcore(context.cpus));
  return all;
}

}  // namespace tensorlane::dpdk
