#include "monitor/cli/bench.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>

namespace tensorlane::cli {

namespace {

constexpr char kOurs[] = "tensorlane";
constexpr std::uint16_t kPortsOfDaemons = 100;  // see ClusterOptions
constexpr Duration kStartTimeout = seconds(60);
constexpr int kFinishWaits = 50;
constexpr Duration kFinishWait = milliseconds(100);
constexpr Duration kRunTimeout = seconds(120);

// A folder that is removed with what is in it.
class ScratchFolder {
 public:
  static Result<std::unique_ptr<ScratchFolder>> make() {
    std::string path = (std::filesystem::temp_directory_path() / "tensorlane-bench-XXXXXX").string();
    if (::mkdtemp(path.data()) == nullptr) {
      return Status(Code::kPermissionDenied, "cannot make a folder", path,
                    "set TMPDIR to a folder that you may write to");
    }
    return std::unique_ptr<ScratchFolder>(new ScratchFolder(path));
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  // A new empty folder inside.
  Result<std::string> sub(const std::string& name) const {
    std::error_code failed;
    std::filesystem::create_directory(path_ + "/" + name, failed);
    if (failed) return Status(Code::kInternal, "cannot make a folder", path_ + "/" + name, failed.message());
    return path_ + "/" + name;
  }
  const std::string& path() const { return path_; }

 private:
  explicit ScratchFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

// CPU time that a process has used so far, all threads, user and system: 0 when it has ended.
double cpu_seconds(pid_t process) {
  clockid_t clock{};
  timespec time{};
  if (::clock_getcpuclockid(process, &clock) != 0 || ::clock_gettime(clock, &time) != 0) return 0;
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

double cpu_seconds(const BenchDaemons* daemons) {
  double sum = 0;
  if (daemons != nullptr) {
    for (const pid_t process : daemons->pids()) sum += cpu_seconds(process);
  }
  return sum;
}

std::string human_bytes(std::uint64_t bytes) {
  if (bytes % mib(1).value == 0) return fmt::format("{} MiB", bytes / mib(1).value);
  if (bytes % kib(1).value == 0) return fmt::format("{} KiB", bytes / kib(1).value);
  return fmt::format("{} B", bytes);
}

// One run of the bench: the contenders, and what they have measured so far.
class Bench {
 public:
  Bench(const BenchOptions& options, const ScratchFolder& scratch) : options_(options), scratch_(scratch) {}

  Status start(const StartDaemons& start_daemons);
  Status measure();
  Status check_network();
  // Lets the workers leave in good order, as some launchers complain loudly otherwise.
  void finish();
  nlohmann::json report() const;
  void say_where_behind() const;

 private:
  Status start_ours(const StartDaemons& start_daemons, const std::string& name, DataProtection protection);
  bool is_ours(const std::string& name) const { return daemons_.contains(name); }
  Status start_group(Contender contender);
  Status measure_size(std::uint64_t bytes);
  void print_row(const nlohmann::json& result) const;

  const BenchOptions& options_;
  const ScratchFolder& scratch_;
  // By contender: ours, and those that are named after a level of data_protection. They outlive our workers.
  std::map<std::string, std::unique_ptr<BenchDaemons>> daemons_;
  process::Processes processes_;
  std::vector<std::unique_ptr<BenchGroup>> groups_;
  std::map<std::string, std::map<std::string, std::uint64_t>> sent_before_;  // by contender
  std::uint64_t bytes_needed_ = 0;
  std::vector<nlohmann::json> results_;
};

Status Bench::start_group(Contender contender) {
  fmt::print("starting {}\n", contender.name);
  groups_.push_back(std::make_unique<BenchGroup>(processes_, std::move(contender), options_.layout.ranks));
  return groups_.back()->start(scratch_.path(), kStartTimeout);
}

Status Bench::start_ours(const StartDaemons& start_daemons, const std::string& name, DataProtection protection) {
  TL_ASSIGN_OR_RETURN(const std::string worker, process::find_program(worker_folder() + "/tensorlane_worker"));
  BenchOptions options = options_;
  options.protection = protection;
  if (options.first_port != 0)
    options.first_port = static_cast<std::uint16_t>(options.first_port + daemons_.size() * kPortsOfDaemons);
  TL_ASSIGN_OR_RETURN(daemons_[name], start_daemons(options, processes_));
  Contender ours{name, {}, {}};
  for (int rank = 0; rank < options_.layout.ranks; ++rank) {
    process::Spawn how;
    how.argv = {worker};
    how.environment = daemons_[name]->environment(rank);
    how.prefix = fmt::format("[rank {}] ", rank);
    ours.processes.push_back(std::move(how));
  }
  TL_RETURN_IF_ERROR(start_group(std::move(ours)));
  TL_ASSIGN_OR_RETURN(sent_before_[name], daemons_[name]->bytes_sent());
  return {};
}

Status Bench::start(const StartDaemons& start_daemons) {
  if (!options_.peers_only) TL_RETURN_IF_ERROR(start_ours(start_daemons, kOurs, DataProtection::kNone));
  for (const DataProtection level : {DataProtection::kAuthenticate, DataProtection::kEncrypt}) {
    const std::string name(data_protection_name(level));
    if (std::ranges::count(options_.protections, name) > 0) TL_RETURN_IF_ERROR(start_ours(start_daemons, name, level));
  }
  for (const std::string& name : options_.compare) {
    TL_ASSIGN_OR_RETURN(const std::string scratch, scratch_.sub(name));
    Result<Contender> peer = make_peer(name, options_.layout, worker_folder(), scratch);
    if (peer.status().code() == Code::kNotFound) {
      fmt::print("skipped {}: {}\n", name, peer.status().to_string());
      continue;
    }
    if (!peer.ok()) return peer.status();
    TL_RETURN_IF_ERROR(start_group(std::move(peer).value()));
  }
  if (groups_.empty())
    return {Code::kNotFound, "nothing to measure", "--compare", "install a peer: see deploy/packages.apt"};
  return {};
}

Status Bench::measure_size(std::uint64_t bytes) {
  const int count = bench_count(bytes);
  std::map<std::string, BenchSamples> samples;
  for (int round = 0; round < options_.rounds; ++round) {
    for (std::size_t turn = 0; turn < groups_.size(); ++turn) {
      // Each round begins with another contender, so that none always follows the same one.
      BenchGroup& group = *groups_[(turn + static_cast<std::size_t>(round)) % groups_.size()];
      const BenchDaemons* daemons = is_ours(group.name()) ? daemons_.at(group.name()).get() : nullptr;
      const double before = cpu_seconds(daemons);
      TL_ASSIGN_OR_RETURN(const Measurement measured, group.run(bytes, count, kRunTimeout));
      BenchSamples& mine = samples[group.name()];
      mine.seconds.insert(mine.seconds.end(), measured.seconds.begin(), measured.seconds.end());
      mine.cpu_seconds += measured.cpu_seconds + cpu_seconds(daemons) - before;
      mine.allreduces += static_cast<std::uint64_t>(measured.allreduces);
    }
  }
  const auto ours = samples.extract(kOurs);
  if (!ours.empty())  // as many sums as with every level of protection
    bytes_needed_ += 2 * static_cast<std::uint64_t>(options_.layout.hosts - 1) * bytes * ours.mapped().allreduces;
  results_.push_back(bench_result(bytes, options_.layout.ranks, ours.empty() ? nullptr : &ours.mapped(), samples));
  return {};
}

Status Bench::measure() {
  fmt::print("{:>8}  {:<12} {:>11} {:>11} {:>10} {:>7}\n", "size", "library", "median us", "p99 us", "CPU s/GB",
             "ratio");
  for (const std::uint64_t bytes : options_.sizes) {
    TL_RETURN_IF_ERROR(measure_size(bytes));
    print_row(results_.back());
  }
  return {};
}

void Bench::print_row(const nlohmann::json& result) const {
  const auto line = [&](const std::string& name, double middle, double high, double cpu, const std::string& ratio) {
    fmt::print("{:>8}  {:<12} {:>11.1f} {:>11.1f} {:>10.2f} {:>7}\n", human_bytes(result["bytes"]), name, middle * 1e6,
               high * 1e6, cpu, ratio);
  };
  if (result.contains("tensorlane_s_median")) {
    line(kOurs, result["tensorlane_s_median"], result["tensorlane_s_p99"], result["cpu_s_per_gb"], "");
  }
  for (const auto& [name, peer] : result["peers"].items()) {
    const std::string ratio = peer.contains("ratio") ? fmt::format("{:.2f}", peer["ratio"].get<double>()) : "";
    line(name, peer["s_median"], peer["s_p99"], peer["cpu_s_per_gb"], ratio);
  }
  std::fflush(stdout);
}

Status Bench::check_network() {
  if (daemons_.empty() || options_.layout.hosts < 2) return {};
  for (const auto& [name, daemons] : daemons_) {
    TL_ASSIGN_OR_RETURN(const auto sent_after, daemons->bytes_sent());
    TL_RETURN_IF_ERROR(check_bytes_sent(sent_before_.at(name), sent_after, bytes_needed_));
  }
  fmt::print("all of the {} bytes that the sums need between hosts went over tcp\n", bytes_needed_);
  return {};
}

void Bench::finish() {
  for (const auto& group : groups_) group->hang_up();
  const auto running = [](const auto& group) { return group->running(); };
  std::size_t exited = 0;
  for (int i = 0; i < kFinishWaits && std::any_of(groups_.begin(), groups_.end(), running); ++i) {
    processes_.wait(kFinishWait, &exited);
  }
}

void Bench::say_where_behind() const {
  bool behind = false;
  for (const nlohmann::json& result : results_) {
    for (const auto& [name, peer] : result["peers"].items()) {
      if (is_ours(name) || !peer.contains("ratio") || peer["ratio"] >= 1.0) continue;
      behind = true;
      fmt::print("behind {} at {}: {:.2f}\n", name, human_bytes(result["bytes"]), peer["ratio"].get<double>());
    }
  }
  if (!behind && !options_.peers_only) fmt::print("behind no peer at any size\n");
}

nlohmann::json Bench::report() const {
  return {{"hosts", options_.layout.hosts},
          {"ranks", options_.layout.ranks},
          {"pattern", options_.pattern},
          {"results", results_}};
}

}  // namespace

Result<int> run_bench(const BenchOptions& options, const StartDaemons& start_daemons) {
  std::ofstream file;
  if (!options.json_file.empty()) {
    file.open(options.json_file);
    if (!file) {
      return Status(Code::kInvalidArgument, "cannot write the report", options.json_file,
                    "give --json a file that can be written");
    }
  }
  TL_ASSIGN_OR_RETURN(const auto scratch, ScratchFolder::make());
  Bench bench(options, *scratch);
  TL_RETURN_IF_ERROR(bench.start(start_daemons));
  TL_RETURN_IF_ERROR(bench.measure());
  TL_RETURN_IF_ERROR(bench.check_network());
  bench.finish();
  bench.say_where_behind();
  if (file.is_open()) file << bench.report().dump(2) << '\n' << std::flush;
  if (!options.json_file.empty() && !file) {
    return Status(Code::kInternal, "cannot write the report", options.json_file, "make room on its disk");
  }
  return 0;
}

}  // namespace tensorlane::cli
