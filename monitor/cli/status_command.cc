// `tensorlane status`: what a daemon says of itself, its jobs and its classes.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>

#include "common/json/json.h"
#include "monitor/answers/parse.h"
#include "monitor/cli/commands.h"
#include "monitor/cli/daemon_call.h"

namespace tensorlane::cli {
namespace {

struct StatusArguments {
  std::string socket, host;
  bool json = false;
};

void print_classes(const nlohmann::json& classes) {
  for (const auto& cls : classes) {
    fmt::print("  class {:<10} DSCP {:<3} PCP {} SL {}\n", cls.value("name", "?"), cls.value("dscp", -1),
               cls.value("pcp", -1), cls.value("sl", -1));
  }
}

// "forged 3, lost 12": what is not 0.
std::string counted(const nlohmann::json& counts) {
  std::string text;
  for (const auto& [name, count] : counts.items()) {
    if (const auto n = count.get<std::uint64_t>(); n != 0)
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, n);
  }
  return text;
}

// A port that the daemon drives itself.
void print_port(const nlohmann::json& port) {
  const auto number = [&](const char* name) { return port.value(name, std::uint64_t{0}); };
  const std::uint64_t speed = number("link_bits_per_second"), no_memory = number("no_memory");
  fmt::print("    port {} {}: link {}{}, polling was {:.1f} % busy in the last second\n", port.value("device", "?"),
             port.value("mac", "?"), port.value("link_up", false) ? "up" : "down",
             speed == 0 ? "" : fmt::format(", {:.0f} Mbit/s", static_cast<double>(speed) * 1e-6),
             port.value("busy_share", 0.0) * 100);
  for (const auto& queue : port.value("queues", nlohmann::json::array())) {
    const auto refused = queue.value("refused", std::uint64_t{0});
    fmt::print("      class {:<10} sent {} packets, {} bytes; its queue was full {} times{}\n",
               queue.value("class", "?"), queue.value("sent_packets", std::uint64_t{0}),
               queue.value("sent_bytes", std::uint64_t{0}), queue.value("full", std::uint64_t{0}),
               refused == 0 ? "" : fmt::format("; the device refused {} packets", refused));
  }
  fmt::print("      received {} packets, {} bytes; neighbours: asked {} times, answered {}\n",
             number("received_packets"), number("received_bytes"), number("neighbour_questions"),
             number("neighbour_answers"));
  if (const std::string drops = counted(port.value("drops", nlohmann::json::object())); !drops.empty())
    fmt::print("      dropped: {}\n", drops);
  if (const std::string packets = counted(port.value("datagrams", nlohmann::json::object())); !packets.empty())
    fmt::print("      packets of flows: {}\n", packets);
  if (no_memory > 0) fmt::print("      no packet buffer was free {} times\n", no_memory);
}

void print_rails(const nlohmann::json& rails, std::size_t lanes) {
  for (std::size_t r = 0; r < rails.size(); ++r) {
    const std::string why = rails[r].value("why_no_rdma", "");
    const std::string why_dpdk = rails[r].value("names_dpdk", false) ? rails[r].value("why_no_dpdk", "") : "";
    fmt::print("  rail {} {}: {} on {}{}{}{}\n", r, rails[r].value("address", "?"), rails[r].value("transport", "?"),
               rails[r].value("device", "?"), lanes == 1 ? "" : fmt::format(", lane {}", rails[r].value("lane", 0)),
               why.empty() ? "" : ", no rdma: " + why, why_dpdk.empty() ? "" : ", no dpdk: " + why_dpdk);
    if (const nlohmann::json port = rails[r].value("port", nlohmann::json()); port.is_object()) print_port(port);
    if (rails.size() == 1) continue;  // the classes of the lane are the rail's
    for (const auto& cls : rails[r].value("classes", nlohmann::json::array())) {
      fmt::print("    class {:<10} sent {} bytes, received {} bytes\n", cls.value("name", "?"),
                 cls.value("sent_bytes", std::uint64_t{0}), cls.value("received_bytes", std::uint64_t{0}));
    }
  }
}

// Which transport the flows to a peer take, its figures, and why not the others.
void print_path(const nlohmann::json& path) {
  const nlohmann::json age = path.value("measured_s_ago", nlohmann::json());
  fmt::print("  to {}, rail {}{}\n", path.value("peer", "?"), path.value("rail", 0),
             age.is_number() ? fmt::format(", measured {:.0f} s ago", age.get<double>()) : "");
  for (const auto& c : path.value("candidates", nlohmann::json::array())) {
    const nlohmann::json latency = c.value("latency_s", nlohmann::json()),
                         rate = c.value("bits_per_second", nlohmann::json());
    const std::string figures =
        latency.is_number() && rate.is_number()
            ? fmt::format("{:.1f} us, {:.1f} Mbit/s: ", latency.get<double>() * 1e6, rate.get<double>() * 1e-6)
            : "";
    fmt::print("    {} {:<5} {}{}\n", c.value("chosen", false) ? "*" : " ", c.value("transport", "?"), figures,
               c.value("verdict", ""));
  }
}

// What the cost model chose for the jobs that this host leads.
void print_patterns(const nlohmann::json& choices) {
  for (const auto& choice : choices) {
    const std::string pattern = choice.value("pattern", "?");
    const nlohmann::json predicted = choice.value("predicted_s", nlohmann::json::object());
    std::string others;
    for (const auto& [other, seconds] : predicted.items()) {
      if (other != pattern) others += fmt::format(", {} {:.1f} us", other, seconds.get<double>() * 1e6);
    }
    fmt::print("  job '{}': {} {} of {} bytes on {} hosts in class {}: {} {:.1f} us{}\n", choice.value("job", "?"),
               choice.value("tensors", 0u), choice.value("operation", "?"), choice.value("bytes", std::uint64_t{0}),
               choice.value("hosts", 0u), choice.value("class", "?"), pattern, predicted.value(pattern, 0.0) * 1e6,
               others);
  }
}

// How urgent the operations are whose programs do not say it, of the jobs that this host leads.
void print_urgencies(const nlohmann::json& choices) {
  for (const auto& choice : choices) {
    fmt::print("  job '{}': {} {} without an urgency have {:.2f} by rule {}, the last one '{}'\n",
               choice.value("job", "?"), choice.value("tensors", std::uint64_t{0}), choice.value("operation", "?"),
               choice.value("urgency", 0.0), choice.value("rule", "?"), choice.value("last", "?"));
  }
}

void print_lane(const nlohmann::json& lane) {
  const nlohmann::json per_slice = lane.value("cpu_ns_per_slice", nlohmann::json());
  const std::string protection = lane.value("data_protection", "none");
  const std::size_t lanes = lane.value("lanes", std::size_t{1});
  fmt::print("{}: {}, {}{}{}{}, CPU {:.2f} s{}\n", lanes == 1 ? "lane" : fmt::format("{} lanes", lanes),
             lane.value("transport", "?"), lane.value("pattern", "?"),
             protection == "none" ? "" : ", data_protection " + protection,
             lane.value("priorities", true) ? "" : ", no priorities", lane.value("tags", true) ? "" : ", no tags",
             lane.value("cpu_seconds", 0.0),
             per_slice.is_number()
                 ? fmt::format(", {} ns per slice of {}", per_slice.dump(), lane.value("sent_slices", std::uint64_t{0}))
                 : "");
  const nlohmann::json cpu = lane.value("lane_cpu_seconds", nlohmann::json::array());
  for (std::size_t l = 0; lanes > 1 && l < cpu.size(); ++l)
    fmt::print("  lane {}: CPU {:.2f} s\n", l, cpu[l].get<double>());
  for (const auto& path : lane.value("paths", nlohmann::json::array())) print_path(path);
  print_patterns(lane.value("pattern_choices", nlohmann::json::array()));
  print_urgencies(lane.value("urgency_choices", nlohmann::json::array()));
  for (const auto& cls : lane.value("classes", nlohmann::json::array())) {
    fmt::print("  class {:<10} sent {} bytes, received {} bytes, completed {} tensors, failed {}\n",
               cls.value("name", "?"), cls.value("sent_bytes", std::uint64_t{0}),
               cls.value("received_bytes", std::uint64_t{0}), cls.value("completed_tensors", std::uint64_t{0}),
               cls.value("failed_tensors", std::uint64_t{0}));
  }
  if (const auto open = lane.value("open_messages", std::uint64_t{0}); open > 0)
    fmt::print("  messages: {} not over, the oldest for {:.1f} s\n", open, lane.value("oldest_message_s", 0.0));
  print_rails(lane.value("rails", nlohmann::json::array()), lanes);
  if (const std::string address = lane.value("metrics", ""); !address.empty())
    fmt::print("  metrics http://{}/metrics\n", address);
  if (const std::string path = lane.value("timeline", ""); !path.empty()) fmt::print("  timeline {}\n", path);
  for (const auto& saved : lane.value("spans_saved", nlohmann::json::array()))
    fmt::print("  spans of failed job '{}': {}\n", saved.value("job", "?"), saved.value("path", "?"));
}

std::string tag(const nlohmann::json& value) {
  return value.is_number() && value.get<int>() >= 0 ? value.dump() : "unknown";
}

// The tags that are in force, as the sockets say.
void print_flows(const nlohmann::json& flows, const nlohmann::json& job_id) {
  const bool rails = std::ranges::any_of(flows, [](const auto& flow) { return flow.value("rail", 0) > 0; });
  for (const auto& flow : flows) {
    if (flow.value("job_id", nlohmann::json()) != job_id) continue;
    fmt::print("  flow to {:<12} class {:<10}{} DSCP {} PCP {}\n", flow.value("peer", "?"), flow.value("class", "?"),
               rails ? fmt::format(" rail {}", flow.value("rail", 0)) : "", tag(flow.value("dscp", nlohmann::json())),
               tag(flow.value("pcp", nlohmann::json())));
  }
}

void print_job(const nlohmann::json& job, const nlohmann::json& flows) {
  const auto port = job.value("leader_port", 0u);
  fmt::print("job '{}' of user {}: {}, epoch {}, leader {}{}\n", job.value("name", "?"), job.value("user", 0u),
             job.value("state", "?"), job.value("epoch", 0u), job.value("leader", "?"),
             port == 0 ? "" : fmt::format(", port {}", port));
  if (const std::string awaited = job.value("waiting_for", ""); !awaited.empty())
    fmt::print("  waiting for {}\n", awaited);
  for (const auto& host : job.value("hosts", nlohmann::json::array())) {
    const nlohmann::json heard = host.value("last_heard_s", nlohmann::json());
    fmt::print("  host {:<12} ranks {}{}\n", host.value("name", "?"),
               host.value("ranks", nlohmann::json::array()).dump(),
               heard.is_number() ? fmt::format(", heard {:.1f} s ago", heard.get<double>()) : "");
  }
  print_flows(flows, job.value("id", nlohmann::json()));
  const nlohmann::json plan = job.value("plan", nlohmann::json());  // null while the job gathers
  if (plan.is_object()) {
    fmt::print("  plan {}, {} tensors, ordering {}{}, hash {}\n", plan.value("version", 0u), plan.value("tensors", 0u),
               plan.value("ordering", "?"),
               plan.contains("concurrent") ? fmt::format(" ({} at once)", plan["concurrent"].dump()) : "",
               plan.value("hash", "-"));
  }
  for (const auto& late : job.value("late", nlohmann::json::array())) {
    fmt::print("  late: rank {} on host {} with {}: {:.1f} s, said {:.0f} s ago\n", late.value("rank", 0u),
               late.value("host", "?"), late.value("what", "?"), late.value("seconds", 0.0),
               late.value("reported_s_ago", 0.0));
  }
  for (const auto& standing : job.value("standing", nlohmann::json::array())) {
    fmt::print("  {}: {}, {:.1f} s\n", standing.value("state", "?"), standing.value("what", "?"),
               standing.value("seconds", 0.0));
  }
  if (job.contains("error") && job["error"].is_string() && !job["error"].get<std::string>().empty())
    fmt::print("  error: {}\n", job["error"].get<std::string>());
}

// What limits of this host's daemon.yaml did to a job.
void print_demoted(const nlohmann::json& lane) {
  for (const auto& job : lane.value("jobs", nlohmann::json::array())) {
    for (const auto& cls : job.value("classes", nlohmann::json::array())) {
      const auto demoted = cls.value("demoted_bytes", std::uint64_t{0});
      if (demoted == 0) continue;
      fmt::print("job '{}': {} bytes of class {} were demoted: beyond this host's job_limits\n", job.value("name", "?"),
                 demoted, cls.value("name", "?"));
    }
  }
}

// Of this host's daemon, or through it of another one's.
Result<std::string> status_text(const std::string& path, const std::string& host) {
  if (host.empty()) return daemon_status(path);
  TL_ASSIGN_OR_RETURN(DaemonAnswers all, ask_daemons(path, {.kind = "status", .hosts = {host}}));
  return std::move(all.answers.front().text);
}

void print(const nlohmann::json& status) {
  fmt::print("host {}: tensorlaned {} (pid {}), up {:.0f} s\n", status.value("host", "?"), status.value("version", "?"),
             status.value("pid", 0), status.value("uptime_s", 0.0));
  if (status.contains("fabric")) {
    fmt::print("fabric {}\n", status["fabric"].value("path", "?"));
    print_classes(status["fabric"].value("classes", nlohmann::json::array()));
  }
  const nlohmann::json lane = status.value("lane", nlohmann::json::object());
  if (!lane.empty()) print_lane(lane);
  for (const auto& job : status.value("jobs", nlohmann::json::array()))
    print_job(job, lane.value("flows", nlohmann::json::array()));
  for (const auto& job : status.value("jobs_of_others", nlohmann::json::array()))
    fmt::print("a job of user {}: {}, {} hosts\n", job.value("user", 0u), job.value("state", "?"),
               job.value("hosts", 0u));
  print_demoted(lane);
}

Result<int> show(const StatusArguments& args) {
  const std::string path = args.socket.empty() ? daemon_socket() : args.socket;
  TL_ASSIGN_OR_RETURN(const std::string text, status_text(path, args.host));
  const nlohmann::json status = answers::parse(text);
  const Status other_release(Code::kCorrupt, "the daemon's status cannot be read", path,
                             "install the same version of the command and the daemon");
  if (!status.is_object()) return other_release;
  if (args.json) {
    fmt::print("{}\n", status.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
    return 0;
  }
  try {
    print(answers::printable_json(status));
  } catch (const nlohmann::json::exception&) {  // a number where a text should be, or the like
    return other_release;
  }
  return 0;
}

}  // namespace

void add_status_command(CLI::App& app, Invocation& chosen) {
  auto args = std::make_shared<StatusArguments>();
  CLI::App* status =
      app.add_subcommand("status", "What the daemon of this host does: jobs, hosts, classes and tags in force");
  status->footer("Examples:\n  tensorlane status --json\n  tensorlane status --host gpu02");
  status->add_option("--socket", args->socket,
                     "Of the daemon; default: TENSORLANE_SOCKET, else /run/tensorlane/tensorlaned.sock");
  status->add_option("--host", args->host,
                     "Of another host of the fabric file, which this host's daemon asks: the jobs that both have");
  status->add_flag("--json", args->json, "Everything, for machines");
  status->callback([args, &chosen] { chosen.run = [args] { return show(*args); }; });
}

}  // namespace tensorlane::cli
