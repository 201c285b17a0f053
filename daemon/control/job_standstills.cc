// One job: traffic that stands still while hosts live (law 21). Who sends says so to all; every host logs it and shows
// it.
#include <fmt/format.h>

#include <algorithm>

#include "daemon/control/job.h"

namespace tensorlane::control {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxStandstills = 256;
constexpr std::uint32_t kUsualMtu = 1500;

const char* state_text(Standstill::State state) {
  switch (state) {
    case Standstill::State::kLate:
      return "late";
    case Standstill::State::kStarved:
      return "starved";
    case Standstill::State::kMoves:
      return "moves";
  }
  return "unknown";
}

// What to look at, from what the device of the sender says.
std::string standstill_fix(HostIndex from, const Standstill& s, const std::string& sender, const std::string& to) {
  if (s.to == from) return "look at what stops or starves the daemon there";
  if (s.held && s.progress.outstanding_bytes > 0) {
    return fmt::format("look at the way back from {} and at the network devices of both: acknowledgements are lost",
                       to);
  }
  if (s.held) return "look at the other flows of its class: they fill the window that they share";
  if (s.progress.outstanding_bytes == 0)
    return fmt::format("look at the daemon of {}: its host has received everything, and the daemon takes nothing", to);
  if (s.progress.retransmissions == 0)
    return fmt::format(
        "look at the network device of {}, at the path from there, and whether the daemon of {} takes anything (over "
        "RDMA, `rdma statistic show` counts what was sent again)",
        sender, to);
  if (s.progress.path_mtu > kUsualMtu)
    return fmt::format("look for a port on the path whose MTU is below {}, or that drops these packets",
                       s.progress.path_mtu);
  return "look for a port, cable or filter on the path that drops these packets";
}

}  // namespace

JobProgress Job::make_progress() const {
  std::vector<std::vector<BitsPerSecond>> speeds;
  for (const RosterHost& member : roster_.hosts) {
    std::vector<BitsPerSecond>& ports = speeds.emplace_back();
    for (std::uint8_t rail = 0; rail < member.addresses.size(); ++rail)
      ports.push_back(rules_.link_speeds.find(member.name, RailIndex(rail)));
  }
  // Lanes and heartbeats speak once in a heartbeat's interval, an eighth of the detection time: what has not moved for
  // less than two of them need not stand still.
  const Duration least(spec_.detection.value / 4);
  return {spec_.credentials.self,
          std::move(speeds),
          {std::max(rules_.stall_warning, least), std::max(rules_.stall_error, least)}};
}

void Job::lane_progress(const ports::LaneProgress& progress, Time now) {
  now_ = now;
  if (progress_) progress_->lane_says(progress, now);
}

void Job::check_progress() {
  const HostIndex self = spec_.credentials.self;
  const JobProgress::News news = progress_->check(now_);
  for (const Standstill& standstill : news.reported) {
    send_others(MessageType::kStandstill, standstill_to_json(standstill));
    note_standstill(self, standstill);
  }
  if (!news.error) return;
  const std::string& to = roster_.hosts[news.error->to.value].name;
  fail_job(Status(Code::kTimedOut,
                  fmt::format("{} for {:.1f} s, though its hosts live", standstill_what(self, *news.error),
                              to_seconds(news.error->waited)),
                  fmt::format("job '{}'", name_),
                  standstill_fix(self, *news.error, roster_.hosts[self.value].name, to) +
                      ", then restart the job from a checkpoint"));
}

bool Job::handle_standstill(const std::string& from, const json& body) {
  const std::optional<Standstill> standstill = standstill_from_json(body, roster_.hosts.size());
  if (!standstill) return false;
  note_standstill(HostIndex(static_cast<std::uint16_t>(*roster_.index_of(from))), *standstill);
  return true;
}

std::string Job::class_name(ClassId cls) const {
  const std::vector<fabric::TrafficClass>& data = rules_.fabric->classes.data;
  if (cls == kControlClass) return "control";
  return cls.value < data.size() ? data[cls.value].name : fmt::format("{}", cls.value);
}

// "the flow from host a to host b has delivered nothing (rail 0, class bulk; 65536 bytes are not acknowledged, ...)"
std::string Job::standstill_what(HostIndex from, const Standstill& s) const {
  const std::string& sender = roster_.hosts[from.value].name;
  if (s.to == from) return fmt::format("a lane of host {} has not turned", sender);
  std::string detail = fmt::format("{} bytes are not acknowledged", s.progress.outstanding_bytes);
  if (s.held && s.progress.outstanding_bytes > 0)
    detail = fmt::format("{} bytes have arrived and are not acknowledged", s.progress.outstanding_bytes);
  else if (s.held)
    detail = "it waits for the window of its class";
  if (s.progress.retransmissions > 0)
    detail +=
        fmt::format(", {} retransmission{}", s.progress.retransmissions, s.progress.retransmissions == 1 ? "" : "s");
  if (s.progress.path_mtu > 0) detail += fmt::format(", path MTU {}", s.progress.path_mtu);
  return fmt::format("the flow from host {} to host {} has delivered nothing (rail {}, class {}; {})", sender,
                     roster_.hosts[s.to.value].name, s.rail.value, class_name(s.cls), detail);
}

void Job::note_standstill(HostIndex from, const Standstill& s) {
  const auto key = std::tuple(from, s.to, s.rail, s.cls);
  const std::string what = standstill_what(from, s);
  if (s.state == Standstill::State::kMoves) {
    standstills_.erase(key);
    const std::string& sender = roster_.hosts[from.value].name;
    log(spdlog::level::info, "job '{}': {}", name_,
        s.to == from ? fmt::format("the lanes of host {} turn again", sender)
                     : fmt::format("the flow from host {} to host {} moves again (rail {}, class {})", sender,
                                   roster_.hosts[s.to.value].name, s.rail.value, class_name(s.cls)));
    return;
  }
  ++counters_.standstill_reports;
  if (standstills_.size() < kMaxStandstills || standstills_.contains(key)) standstills_[key] = {s, now_};
  const std::string& to = roster_.hosts[s.to.value].name;
  log(spdlog::level::warn, "job '{}': {} for {:.1f} s: {}", name_, what, to_seconds(s.waited),
      s.state == Standstill::State::kStarved ? "more urgent classes fill a port on its way"
                                             : standstill_fix(from, s, roster_.hosts[from.value].name, to));
}

json Job::describe_standstills() const {
  json all = json::array();
  for (const auto& [key, report] : standstills_) {
    const auto& [from, to, rail, cls] = key;
    const Standstill& s = report.standstill;
    all.push_back({{"from", roster_.hosts[from.value].name},
                   {"to", roster_.hosts[to.value].name},
                   {"rail", rail.value},
                   {"class", class_name(cls)},
                   {"state", state_text(s.state)},
                   {"seconds", to_seconds(s.waited)},
                   {"reported_s_ago", to_seconds(now_ - report.at)},
                   {"outstanding_bytes", s.progress.outstanding_bytes},
                   {"retransmissions", s.progress.retransmissions},
                   {"path_mtu", s.progress.path_mtu},
                   {"what", standstill_what(from, s)}});
  }
  return all;
}

}  // namespace tensorlane::control
