// What a job tells those who look at the host: in the log and to the timeline.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <chrono>

#include "common/base/log_gate.h"
#include "daemon/lane/clocks.h"
#include "daemon/lane/job.h"

namespace tensorlane::lane {

// Unless the job's user has brought about too many lines.
void Job::log(const std::string& line) const {
  if (const auto held_back = around_.log_share->pass(user(), clock_now()))
    spdlog::info("{}{}", line, held_back_text(*held_back));
}

void Job::report_begin() {
  std::vector<std::string> hosts;
  hosts.reserve(spec_.hosts.size());
  for (const ports::JobHost& host : spec_.hosts) hosts.push_back(host.name);
  around_.timeline->begin_job(id(), epoch(), spec_.name, hosts);
}

void Job::report_connected() {
  std::string transports;
  for (const std::string& name : metrics_->transports) transports += (transports.empty() ? "" : " and ") + name;
  log(fmt::format("job '{}': its flows to {} {} go over {}", spec_.name, spec_.hosts.size() - 1,
                  spec_.hosts.size() == 2 ? "host" : "hosts", transports));
}

void Job::report_end() {
  around_.timeline->end_job(id(), epoch());
  const auto alive = std::chrono::steady_clock::now() - metrics_->began;
  std::uint64_t sent = 0, received = 0, demoted = 0;
  for (const ports::JobMetrics::PerClass& cls : metrics_->classes) {
    sent += cls.bytes_sent.value();
    received += cls.bytes_received.value();
    demoted += cls.bytes_demoted.value();
  }
  log(fmt::format(
      "job '{}' of user {} is over on this host: {:.1f} s, {} iterations, {} bytes sent ({} of them demoted) and {} "
      "received",
      spec_.name, spec_.owner.user, std::chrono::duration<double>(alive).count(), metrics_->iterations.value(), sent,
      demoted, received));
}

}  // namespace tensorlane::lane
