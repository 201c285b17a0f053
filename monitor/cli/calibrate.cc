#include "monitor/cli/calibrate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <span>

#include "monitor/answers/parse.h"
#include "monitor/cli/bench_statistics.h"
#include "monitor/cli/daemon_call.h"
#include "monitor/cli/output_file.h"
#include "tensorlane/tensorlane.hpp"

namespace tensorlane::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kWarmUps = 2;
constexpr int kLeast = 5;
constexpr int kMost = 200;

// A message goes to the other rank in one tensor and comes back in another. Its first element says whether there will
// be another one, its last one is its number.
struct Exchange {
  Tensor there, back;
  std::span<float> out, in;  // of `there`, of `back`
};

Exchange register_exchange(Session& session, const std::string& name, Bytes size, double urgency) {
  const std::size_t count = size.value / sizeof(float);
  const std::span<float> out = session.allocate<float>(count), in = session.allocate<float>(count);
  const std::string names[] = {name + "/there", name + "/back"};
  tl_tensor_desc_t descs[] = {TL_TENSOR_INIT, TL_TENSOR_INIT};
  for (int root = 0; root < 2; ++root) {
    descs[root].name = names[root].c_str();
    descs[root].buffer = (root == 0 ? out : in).data();
    descs[root].count = count;
    descs[root].operation = TL_BROADCAST;
    descs[root].root = root;
    descs[root].urgency = static_cast<float>(urgency);
  }
  std::vector<Tensor> tensors = session.register_group(name, descs);
  return {tensors[0], tensors[1], out, in};
}

// Half of a round trip, of as many as the budget allows; the median.
Result<Duration> lead(Exchange& exchange, Duration budget) {
  std::vector<double> transfers;
  double spent = 0;
  for (int i = 1, last = 0; last == 0; ++i) {
    const int measured = i - kWarmUps;
    last = measured >= kLeast && (measured >= kMost || spent >= to_seconds(budget)) ? 1 : 0;
    exchange.out.front() = last == 0 ? 1 : 0;
    exchange.out.back() = static_cast<float>(i);
    const Clock::time_point begin = Clock::now();
    Request there = exchange.there.post(), back = exchange.back.post();
    back.wait();
    const double took = std::chrono::duration<double>(Clock::now() - begin).count();
    there.wait();
    if (exchange.in.back() != static_cast<float>(i))
      return Status(Code::kCorrupt, fmt::format("message {} came back as {}", i, exchange.in.back()),
                    "tensorlane calibrate", "look at the logs of both daemons");
    if (measured <= 0) continue;
    transfers.push_back(took / 2);
    spent += took;
  }
  return Duration(std::llround(median(transfers) * 1e9));
}

void follow(Exchange& exchange) {
  Request there = exchange.there.post();
  for (bool more = true; more;) {
    there.wait();
    more = exchange.out.front() != 0;
    exchange.in.back() = exchange.out.back();
    Request back = exchange.back.post();
    if (more) there = exchange.there.post();
    back.wait();
  }
}

struct JobStatus {
  std::vector<std::string> hosts;
  std::string transport = "tcp";
  std::vector<std::string> classes;  // in use
  std::vector<double> thresholds;
};

Result<JobStatus> job_status(const CalibrateOptions& options) {
  TL_ASSIGN_OR_RETURN(const std::string text, daemon_status(options.socket));
  const nlohmann::json status = answers::parse(text);
  const auto corrupt = [&] {
    return Status(Code::kCorrupt, "the daemon's status says nothing of this job", options.socket,
                  "install the same version of the command and the daemon");
  };
  if (!status.is_object() || !status.contains("jobs") || !status.contains("lane")) return corrupt();
  JobStatus job;
  for (const nlohmann::json& j : status["jobs"]) {
    if (j.value("name", "") != options.job) continue;
    for (const nlohmann::json& host : j.value("hosts", nlohmann::json::array()))
      job.hosts.push_back(host.value("name", "?"));
  }
  for (const nlohmann::json& cls : status["lane"].value("classes", nlohmann::json::array()))
    job.classes.push_back(cls.value("name", "?"));
  job.thresholds = status.value("fabric", nlohmann::json::object()).value("thresholds", std::vector<double>());
  for (const nlohmann::json& flow : status["lane"].value("flows", nlohmann::json::array())) {
    if (flow.value("job", "") == options.job) job.transport = flow.value("transport", job.transport);
  }
  if (job.hosts.empty() || job.classes.empty()) return corrupt();
  job.thresholds.resize(job.classes.size() - 1);
  return job;
}

void print(const std::vector<ClassModel>& classes, const JobStatus& job) {
  fmt::print("{} <-> {} over {}\n", job.hosts[0], job.hosts[1], job.transport);
  fmt::print("{:<12} {:>12} {:>12} {:>14} {:>18} {:>20}\n", "class", "64 B us", "4 MiB us", "overhead us",
             "bandwidth Mbit/s", "batching threshold");
  for (const ClassModel& c : classes) {
    fmt::print("{:<12} {:>12.1f} {:>12.1f} {:>14.1f} {:>18.1f} {:>18} B\n", c.name, to_seconds(c.small) * 1e6,
               to_seconds(c.large) * 1e6, c.model.overhead_ns() * 1e-3, 8e3 / c.model.ns_per_byte(),
               c.model.threshold().value);
  }
}

Result<int> calibrate(Session& session, const CalibrateOptions& options) {
  TL_ASSIGN_OR_RETURN(const JobStatus job, job_status(options));
  if (session.size() != 2 || job.hosts.size() != 2)
    return Status(Code::kInvalidArgument,
                  fmt::format("the job has {} ranks on {} hosts", session.size(), job.hosts.size()),
                  "tensorlane calibrate", "start one rank on each of two hosts: the fabric lies between them");
  const bool leads = session.rank() == 0;
  std::vector<ClassModel> classes;
  for (std::size_t c = 0; c < job.classes.size(); ++c) {
    const double urgency = urgency_of_class(job.thresholds, c);
    std::array<Duration, 2> times;
    const std::array<Bytes, 2> sizes{engine::kSmallSample, engine::kLargeSample};
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      Exchange exchange =
          register_exchange(session, fmt::format("calibrate/{}/{}", c, sizes[i].value), sizes[i], urgency);
      if (!leads) {
        follow(exchange);
        continue;
      }
      TL_ASSIGN_OR_RETURN(times[i], lead(exchange, options.budget));
    }
    if (!leads) continue;
    const std::array<engine::TransferSample, 2> samples{{{sizes[0], times[0]}, {sizes[1], times[1]}}};
    TL_ASSIGN_OR_RETURN(const engine::NetworkModel model, engine::NetworkModel::fit(samples));
    classes.push_back({job.classes[c], times[0], times[1], model});
  }
  session.finalize();
  if (!leads) return 0;
  print(classes, job);
  TL_RETURN_IF_ERROR(
      write_output(options.json_file, calibration_report(job.hosts, job.transport, classes).dump(2) + "\n"));
  return 0;
}

}  // namespace

double urgency_of_class(const std::vector<double>& thresholds, std::size_t cls) {
  const double upper = cls == 0 ? 1 : thresholds[cls - 1];
  const double lower = cls == thresholds.size() ? 0 : thresholds[cls];
  return (upper + lower) / 2;
}

nlohmann::json calibration_report(const std::vector<std::string>& hosts, const std::string& transport,
                                  const std::vector<ClassModel>& classes) {
  nlohmann::json rows = nlohmann::json::array();
  for (const ClassModel& c : classes) {
    rows.push_back({{"class", c.name},
                    {"small_s", to_seconds(c.small)},
                    {"large_s", to_seconds(c.large)},
                    {"overhead_s", c.model.overhead_ns() * 1e-9},
                    {"seconds_per_byte", c.model.ns_per_byte() * 1e-9},
                    {"bits_per_second", 8e9 / c.model.ns_per_byte()},
                    {"batching_threshold_bytes", c.model.threshold().value}});
  }
  return {{"hosts", hosts}, {"transport", transport}, {"classes", std::move(rows)}};
}

Result<CalibratedNetwork> read_calibration(const std::string& text, const std::string& where) {
  const nlohmann::json report = nlohmann::json::parse(text, nullptr, false);
  const Status bad(Code::kCorrupt, "the file is no report of `tensorlane calibrate`", where,
                   "write it with tensorlane calibrate --json");
  if (!report.is_object() || !report.contains("classes") || !report["classes"].is_array() || report["classes"].empty())
    return bad;
  const nlohmann::json& last = report["classes"].back();
  for (const char* key : {"bits_per_second", "overhead_s"}) {
    if (!last.is_object() || !last.contains(key) || !last[key].is_number()) return bad;
  }
  const double rate = last["bits_per_second"], overhead = last["overhead_s"];
  if (!(rate >= 1 && rate < 1e18 && overhead >= 0 && overhead < 1e6)) return bad;
  return CalibratedNetwork{BitsPerSecond(static_cast<std::uint64_t>(rate)), Duration(std::llround(overhead * 1e9))};
}

Result<int> run_calibrate(const CalibrateOptions& options) {
  try {
    Session session;
    return calibrate(session, options);
  } catch (const Error& failed) {
    return Status(Code::kUnavailable, failed.what(), "tensorlane calibrate",
                  "start it as a rank, for example with tensorlane run -n 2 -- tensorlane calibrate");
  }
}

}  // namespace tensorlane::cli
