#include "monitor/explain/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace tensorlane::explain {

using nlohmann::json;

namespace {

constexpr double kNano = 1e-9;
// More of anything in one report is no report.
constexpr std::size_t kMostItems = 1024;  // each is looked for among the others
constexpr std::size_t kMostText = 512;

// Reads two reports side by side. After the first thing that makes no sense `bad` says what, and every reading is 0.
class Reader {
 public:
  Reader(const json& before, const json& after) : before_(before), after_(after) {}

  double last(const char* key) { return number(after_, key); }
  // How much a count has grown.
  double grown(const char* key) {
    const double grown = number(after_, key) - number(before_, key);
    if (grown < 0) fail(key, "has shrunk");
    return std::max(grown, 0.0);
  }
  std::optional<double> last_if(const char* key) { return has(after_, key) ? std::optional(last(key)) : std::nullopt; }
  std::optional<double> grown_if(const char* key) {
    return has(after_, key) && has(before_, key) ? std::optional(grown(key)) : std::nullopt;
  }
  std::string text(const char* key) {
    const auto found = after_.is_object() ? after_.find(key) : after_.end();
    const bool good = after_.is_object() && found != after_.end() && found->is_string() &&
                      found->get_ref<const std::string&>().size() <= kMostText;
    if (!good) fail(key, "is no text");
    return good ? found->get<std::string>() : std::string();
  }
  // Whether both have the same of it.
  bool same(const char* key) { return has(key) && before_.at(key) == after_.at(key); }
  bool has(const char* key) { return has(before_, key) && has(after_, key); }
  Reader inner(const char* key) {
    Reader reader(has(before_, key) ? before_.at(key) : null(), has(after_, key) ? after_.at(key) : null());
    return reader;
  }
  // Whether the second one's list has this text.
  bool lists(const char* key, const char* text) const {
    return is_list(after_, key) && std::ranges::find(after_.at(key), json(text)) != after_.at(key).end();
  }
  // Items of a list that are in both, by their places.
  template <typename Take>
  void each_by_place(const char* key, const Take& take) {
    if (!is_list(before_, key) || !is_list(after_, key)) return fail(key, "is no list");
    for (std::size_t i = 0; i < std::min(before_.at(key).size(), after_.at(key).size()); ++i) {
      Reader reader(before_.at(key)[i], after_.at(key)[i]);
      take(reader);
      if (!reader.bad.empty()) return fail(key, reader.bad.c_str());
    }
  }
  // Items of a list that are in both, by some of their keys; others are new, or gone.
  template <typename Take>
  void each(const char* key, std::initializer_list<const char*> names, const Take& take) {
    if (!is_list(before_, key) || !is_list(after_, key)) return fail(key, "is no list");
    const json& olds = before_.at(key);
    for (const json& item : after_.at(key)) {
      const auto old = std::ranges::find_if(olds, [&](const json& other) {
        return std::ranges::all_of(names, [&](const char* name) {
          return item.is_object() && other.is_object() && item.contains(name) && other.contains(name) &&
                 item.at(name) == other.at(name);
        });
      });
      if (old == olds.end()) continue;
      Reader reader(*old, item);
      take(reader);
      if (!reader.bad.empty()) return fail(key, reader.bad.c_str());
    }
  }
  void fail(const char* key, const char* what) {
    if (bad.empty()) bad = fmt::format("'{}' {}", key, what);
  }

  std::string bad;

 private:
  static const json& null() {
    static const json nothing;
    return nothing;
  }
  static bool has(const json& object, const char* key) {
    return object.is_object() && object.contains(key) && !object.at(key).is_null();
  }
  static bool is_list(const json& object, const char* key) {
    return has(object, key) && object.at(key).is_array() && object.at(key).size() <= kMostItems;
  }
  double number(const json& object, const char* key) {
    const bool good = has(object, key) && object.at(key).is_number() && std::isfinite(object.at(key).get<double>()) &&
                      object.at(key).get<double>() >= 0;
    if (!good) fail(key, "is no number");
    return good ? object.at(key).get<double>() : 0;
  }

  const json& before_;
  const json& after_;
};

RankTimes rank_of(Reader& in) {
  RankTimes rank;
  rank.rank = static_cast<std::uint32_t>(std::min(in.last("rank"), 4e9));
  rank.operations = in.grown("operations");
  rank.mean_wait = in.grown("wait_ns") * kNano / std::max(rank.operations, 1.0);
  rank.blocked = in.grown("blocked_ns") * kNano;
  rank.stream_waits = in.grown_if("stream_waits").value_or(0);
  if (!in.has("waiter")) return rank;
  Reader waiter = in.inner("waiter");
  if (!waiter.same("thread")) return rank;  // the two counts are of two threads
  const double run = waiter.grown("run_ns") * kNano, runnable = waiter.grown("runnable_ns") * kNano;
  if (!waiter.bad.empty()) return rank;
  rank.run = run;
  rank.runnable = runnable;
  return rank;
}

ClassTimes class_of(Reader& in) {
  ClassTimes cls;
  cls.name = in.text("name");
  cls.sent_bytes = in.grown("sent_bytes");
  cls.received_bytes = in.grown("received_bytes");
  cls.demoted_bytes = in.grown("demoted_bytes");
  cls.operations = in.grown("operations");
  cls.mean_completion = in.grown("completion_ns") * kNano / std::max(cls.operations, 1.0);
  cls.sends = in.grown("sends");
  cls.mean_queue = in.grown("queue_ns") * kNano / std::max(cls.sends, 1.0);
  cls.window_stalls = in.grown("host_window_stalls");
  cls.window_bytes = in.last("window_bytes");
  cls.limit = in.last_if("limit_bits_per_second");
  return cls;
}

Connection connection_of(Reader& in) {
  Connection connection;
  connection.peer = in.text("peer");
  connection.cls = in.text("class");
  connection.rail = static_cast<std::size_t>(std::min(in.last("rail"), 255.0));
  connection.rtt = in.last("rtt_ns") * kNano;
  connection.min_rtt = in.last("min_rtt_ns") * kNano;
  connection.segments = in.grown("segments");
  connection.resent = in.grown("resent");
  connection.acked_bytes = in.grown("acked_bytes");
  connection.busy = in.grown("busy_ns") * kNano;
  return connection;
}

RailTimes rail_of(Reader& in) {
  RailTimes rail;
  rail.nic = in.text("nic");
  rail.speed = in.last_if("bits_per_second");
  if (in.same("nic")) {
    rail.nic_sent = in.grown_if("nic_sent_bytes");
    rail.nic_received = in.grown_if("nic_received_bytes");
  }
  rail.over_memory = in.lists("transports", "local");
  rail.sent = in.grown("sent_bytes");
  rail.received = in.grown("received_bytes");
  return rail;
}

}  // namespace

Result<HostTimes> difference(const json& before, const json& after) {
  Reader in(before, after);
  HostTimes host;
  host.host = in.text("host");
  host.seconds = in.grown("at_ns") * kNano;
  host.iterations = in.grown("iterations");
  host.batched_operations = in.grown("batched_operations");
  host.cpus = in.last("cpus");
  host.staging_share = in.last("staging_bytes") / std::max(in.last("staging_limit_bytes"), 1.0);
  Reader lanes = in.inner("lanes");
  host.lanes = lanes.last("count");
  if (lanes.has("times")) {
    Reader times = lanes.inner("times");
    host.lane_run = times.grown("run_ns") * kNano;
    host.lane_runnable = times.grown("runnable_ns") * kNano;
    if (!times.bad.empty()) lanes.fail("times", times.bad.c_str());
  }
  if (!lanes.bad.empty()) in.fail("lanes", lanes.bad.c_str());
  in.each("ranks", {"rank"}, [&](Reader& item) { host.ranks.push_back(rank_of(item)); });
  in.each("classes", {"name"}, [&](Reader& item) { host.classes.push_back(class_of(item)); });
  in.each_by_place("rails", [&](Reader& item) { host.rails.push_back(rail_of(item)); });
  if (in.bad.empty() && host.classes.empty()) in.fail("classes", "is empty");
  // Text where the kernel does not tell of connections.
  if (after.is_object() && after.contains("connections") && after["connections"].is_array()) {
    in.each("connections", {"peer", "class", "rail"}, [&](Reader& item) {
      // The counts of a flow that goes on over a new connection begin anew.
      if (!item.has("path") || item.same("path")) host.connections.push_back(connection_of(item));
    });
  }
  host.connections_left_out = in.last_if("connections_left_out").value_or(0);
  if (in.bad.empty() && host.seconds > 0) return host;
  const std::string shown = host.host.empty() ? "a host" : "host " + host.host;
  if (in.bad.empty()) in.bad = "no time lies between the two reports";
  return Status(Code::kCorrupt, fmt::format("the reports of {} make no sense: {}", shown, in.bad), "explain",
                "ask again while the job runs; install the same release on all hosts");
}

}  // namespace tensorlane::explain
