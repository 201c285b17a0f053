// `tensorlane bench allreduce`: the command line of bench.h.
#include <algorithm>
#include <memory>

#include <fmt/format.h>

#include "monitor/cli/bench.h"
#include "monitor/cli/bench_daemons.h"
#include "monitor/cli/commands.h"

namespace tensorlane::cli {

namespace {

constexpr std::uint64_t kMaxBytes = std::uint64_t{4} << 30;

// "4K", "1M", "1G" or plain bytes, whole floats.
Result<std::uint64_t> parse_size(const std::string& text) {
  const Status bad(Code::kInvalidArgument, "not a size: " + text, "--sizes",
                   "give whole floats up to 4G, such as 4K,64K,1M");
  std::size_t used = 0;
  std::uint64_t number = 0;
  if (text.empty() || text.size() > 12 || text.front() < '0' || text.front() > '9') return bad;
  number = std::stoull(text, &used);
  const std::string unit = text.substr(used);
  const std::uint64_t factor = unit.empty()  ? 1
                               : unit == "K" ? kib(1).value
                               : unit == "M" ? mib(1).value
                               : unit == "G" ? mib(1024).value
                                             : 0;
  if (factor == 0 || number == 0 || number > kMaxBytes / factor || number * factor % sizeof(float) != 0) return bad;
  return number * factor;
}

struct BenchArguments {
  int hosts = 0;
  int ranks = 0;
  std::vector<std::string> sizes{"4K", "64K", "1M", "16M", "64M"};
  BenchOptions options;
};

Result<int> bench_allreduce(const BenchArguments& arguments) {
  BenchOptions options = arguments.options;
  options.layout.hosts = arguments.hosts > 0 ? arguments.hosts : 1;
  options.layout.ranks = arguments.hosts > 0 ? arguments.hosts : arguments.ranks;
  for (const std::string& text : arguments.sizes) {
    TL_ASSIGN_OR_RETURN(const std::uint64_t bytes, parse_size(text));
    options.sizes.push_back(bytes);
  }
  std::sort(options.compare.begin(), options.compare.end());
  options.compare.erase(std::unique(options.compare.begin(), options.compare.end()), options.compare.end());
  if (!options.protections.empty() && (options.layout.hosts < 2 || options.peers_only)) {
    return Status(Code::kInvalidArgument, "data is protected between hosts only", "--data-protection",
                  "give --hosts N with it");
  }
  return run_bench(options, start_bench_daemons);
}

}  // namespace

void add_bench_command(CLI::App& app, Invocation& chosen) {
  CLI::App* bench = app.add_subcommand("bench", "Measure tensorlane beside other libraries");
  bench->require_subcommand(1);
  CLI::App* allreduce = bench->add_subcommand("allreduce", "Sums of float32 tensors in place, every result checked");
  allreduce->footer("Example:\n  tensorlane bench allreduce --hosts 4 --compare gloo --json bench.json");
  const auto arguments = std::make_shared<BenchArguments>();
  CLI::Option* hosts =
      allreduce->add_option("--hosts", arguments->hosts, "N hosts with one rank each, TCP between them")
          ->check(CLI::Range(2, 64));
  CLI::Option* ranks =
      allreduce->add_option("--ranks", arguments->ranks, "N ranks on one host")->check(CLI::Range(2, 64));
  hosts->excludes(ranks);
  allreduce->add_option("--compare", arguments->options.compare, "Peers: gloo, mpich, openmpi")
      ->delimiter(',')
      ->check(CLI::IsMember(peer_names()));
  allreduce->add_option("--sizes", arguments->sizes, "Bytes, with K, M or G")->delimiter(',')->capture_default_str();
  allreduce->add_option("--repeat", arguments->options.rounds, "Rounds of turns at each size")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  allreduce->add_option("--pattern", arguments->options.pattern, "tensorlane's aggregation pattern")
      ->check(CLI::IsMember({"ring", "halving_doubling", "tree", "parameter_server", "auto"}))
      ->capture_default_str();
  allreduce
      ->add_option("--set", arguments->options.settings,
                   "KEY=VALUE: a line of daemon.yaml, e.g. --set slice_elements=65536")
      ->allow_extra_args(false);
  allreduce
      ->add_option("--data-protection", arguments->options.protections,
                   "Levels of data_protection beside none: authenticate, encrypt. The ratio is how many times as long "
                   "a sum takes with it")
      ->delimiter(',')
      ->check(CLI::IsMember({"authenticate", "encrypt"}));
  allreduce->add_option("--first-port", arguments->options.first_port, "Of our daemons, for several runs at once")
      ->check(CLI::Range(1024, 65000))
      ->capture_default_str();
  allreduce->add_option("--json", arguments->options.json_file, "Write the report there");
  allreduce->add_flag("--peers-only", arguments->options.peers_only, "Leave tensorlane out")->group("");
  allreduce->callback([&chosen, arguments] {
    chosen.run = [arguments]() -> Result<int> {
      if (arguments->hosts == 0 && arguments->ranks == 0) {
        return Status(Code::kInvalidArgument, "how many ranks, and where?", "tensorlane bench allreduce",
                      "give --hosts N or --ranks N");
      }
      return bench_allreduce(*arguments);
    };
  });
}

}  // namespace tensorlane::cli
