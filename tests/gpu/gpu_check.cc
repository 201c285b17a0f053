// gpu_check PART [--driver LIBRARY] [--kernels FILE] [--largest BYTES] [--seed N] [--brief] [--out FILE]
//
// One rank of a job (`tensorlane run` starts it) that uses a GPU by the C interface. PART is "correctness" (all
// operations bitwise as on host memory, registered tensors, random streams), "staging" (bandwidth beside a plain pinned
// copy), "latency" (of small operations beside host memory and copies, of urgent ones behind bulk), "overlap"
// (of copies with the network, two ranks on two hosts), "cpu" (time of the program's threads for each call), "kernels"
// (their bandwidth beside a copy's) or "sharing" (sums on the GPUs of two hosts' ranks, bitwise as on host memory, and
// how long they take). Rank 0 writes its figures to FILE as JSON. Exit status: 1 when a check fails.
#include "gpu_check.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>

namespace tensorlane::gpu_check {

void must(tl_status_t status, const std::string& what) {
  if (status == TL_OK) return;
  std::fprintf(stderr, "gpu_check: %s: %s\n", what.c_str(), tl_last_error());
  std::_Exit(1);  // the other ranks hear of it by the end of this process
}

void Rank::expect(bool holds, const std::string& what) {
  ++checked;
  if (holds) return;
  if (++wrong <= 10) std::fprintf(stderr, "gpu_check: rank %d: WRONG: %s\n", rank, what.c_str());
}

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double Samples::at(double part) const {
  std::vector<double> sorted = values_;
  std::sort(sorted.begin(), sorted.end());
  const auto index = static_cast<std::size_t>(part * static_cast<double>(sorted.size()));
  return sorted.empty() ? 0 : sorted[std::min(index, sorted.size() - 1)];
}

nlohmann::json Samples::json(double factor) const {
  return {{"median", at(0.5) * factor}, {"p99", at(0.99) * factor}, {"runs", values_.size()}};
}

namespace {

[[noreturn]] void usage(const char* why) {
  std::fprintf(stderr,
               "gpu_check: %s: usage: gpu_check correctness|staging|latency|overlap|cpu|kernels|sharing [--driver "
               "LIBRARY] [--largest BYTES] "
               "[--seed N] [--brief] [--out FILE]\n",
               why);
  std::exit(2);
}

Settings parse(int argc, char** argv) {
  Settings settings;
  if (argc < 2) usage("which part?");
  settings.part = argv[1];
  for (int i = 2; i < argc; ++i) {
    const std::string key = argv[i];
    if (key == "--brief") {
      settings.brief = true;
      continue;
    }
    if (i + 1 == argc) usage(argv[i]);
    const char* value = argv[++i];
    if (key == "--driver")
      settings.driver = value;
    else if (key == "--largest")
      settings.largest = std::strtoull(value, nullptr, 10);
    else if (key == "--kernels")
      settings.kernels = value;
    else if (key == "--seed")
      settings.seed = std::strtoull(value, nullptr, 10);
    else if (key == "--out")
      settings.out = value;
    else
      usage(argv[i - 1]);
  }
  return settings;
}

void run_part(Rank& rank) {
  const std::string& part = rank.settings.part;
  if (part == "correctness") {
    check_operations(rank);
    check_registered(rank);
    check_streams(rank);
  } else if (part == "staging") {
    measure_staging(rank);
  } else if (part == "latency") {
    measure_latency(rank);
    measure_urgent(rank);
  } else if (part == "overlap") {
    measure_overlap(rank);
  } else if (part == "cpu") {
    measure_cpu(rank);
  } else if (part == "kernels") {
    measure_kernels(rank);
  } else if (part == "sharing") {
    check_sharing(rank);
    measure_sharing(rank);
  } else {
    usage("no such part");
  }
}

void write_figures(const Rank& rank) {
  if (rank.rank != 0) return;
  const std::string text = rank.figures.dump(2) + "\n";
  if (rank.settings.out.empty()) {
    std::fputs(text.c_str(), stdout);
    return;
  }
  std::ofstream(rank.settings.out) << text;
}

int run(const Settings& settings) {
  const tl_config_t config = TL_CONFIG_INIT;
  tl_context_t* context = nullptr;
  must(tl_init(&config, &context), "joining the job");
  bool good = false;
  {
    Rank rank(settings, context);
    rank.figures["gpu"] = rank.gpu.name();
    rank.figures["cuda_driver"] = rank.gpu.driver_version();
    run_part(rank);
    const char* status = nullptr;
    must(tl_gpu_status(context, &status), "the library's status of GPUs");
    rank.figures["library"] = nlohmann::json::parse(status);
    must(tl_barrier(context, 60), "the last barrier");
    must(tl_finalize(context), "leaving the job");
    const std::string violations = rank.gpu.violations();
    rank.expect(violations.empty(), "the driver was used as it must not be: " + violations);
    rank.figures["checked"] = rank.checked;
    rank.figures["wrong"] = rank.wrong;
    write_figures(rank);
    good = rank.wrong == 0;
  }
  return good ? 0 : 1;
}

}  // namespace
}  // namespace tensorlane::gpu_check

int main(int argc, char** argv) {
  try {
    return tensorlane::gpu_check::run(tensorlane::gpu_check::parse(argc, argv));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpu_check: %s\n", error.what());
    return 2;
  }
}
