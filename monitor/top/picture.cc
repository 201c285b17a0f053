#include "monitor/top/picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "monitor/answers/read.h"
#include "monitor/explain/explain.h"
#include "monitor/explain/links.h"

namespace tensorlane::top {

using nlohmann::json;

namespace {

using Times = std::map<std::string, explain::HostTimes>;

// Fills a row by the names of its columns.
class Filler {
 public:
  Filler(Table* table, std::string key) : table_(table), row_{std::move(key), {}} {
    row_.cells.resize(table->columns.size());
  }
  Filler& set(const char* column, Cell cell) {
    row_.cells.at(table_->column(column)) = std::move(cell);
    return *this;
  }
  Filler& set(const char* column, const std::optional<double>& value) {
    return value ? set(column, Cell(*value)) : *this;
  }
  Filler& note(std::string why) {
    row_.note = std::move(why);
    return *this;
  }
  void add() { table_->rows.push_back(std::move(row_)); }

 private:
  Table* table_;
  Row row_;
};

constexpr double kBits = 8;

struct Sums {
  double sent = 0, received = 0, stalls = 0;
  std::optional<double> blocked;  // its ranks, in the mean
};

Sums sums_of(const explain::HostTimes& host) {
  Sums sums;
  for (const explain::ClassTimes& cls : host.classes) {
    sums.sent += kBits * cls.sent_bytes / host.seconds;
    sums.received += kBits * cls.received_bytes / host.seconds;
    sums.stalls += cls.window_stalls / host.seconds;
  }
  const bool known =
      std::ranges::all_of(host.ranks, [](const explain::RankTimes& rank) { return rank.stream_waits == 0; });
  if (host.ranks.empty() || !known) return sums;
  sums.blocked = 0;
  for (const explain::RankTimes& rank : host.ranks)
    *sums.blocked += std::min(rank.blocked / host.seconds, 1.0) / static_cast<double>(host.ranks.size());
  return sums;
}

std::optional<double> exposed_share(const explain::Explanation& all) {
  return all.exposed ? std::optional(std::min(*all.exposed / all.iteration, 1.0)) : std::nullopt;
}

std::string remark_of(const json& job) {
  if (const std::string error = answers::text(job, "error"); !error.empty()) return error;
  if (const std::string awaited = answers::text(job, "waiting_for"); !awaited.empty()) return "waits for " + awaited;
  std::string remark;
  answers::each(job, "late", [&](const json& late) {
    const auto rank = answers::number(late, "rank");
    if (!remark.empty() || !rank || *rank < 0 || *rank > 4e9) return;
    remark = "late: " + explain::rank_name(static_cast<std::uint32_t>(*rank), answers::text(late, "host"));
    if (const std::string what = answers::text(late, "what"); !what.empty()) remark += " with " + what;
  });
  answers::each(job, "standing", [&](const json& standing) {
    if (remark.empty()) remark = answers::text(standing, "state") + ": " + answers::text(standing, "what");
  });
  return remark;
}

std::string id_of(const json& job) {
  const json& id = answers::member(job, "id");
  return id.is_number_unsigned() ? std::to_string(id.get<std::uint64_t>()) : std::string();
}

Cell user_of(const json& job) {
  const json& user = answers::member(job, "user");
  return user.is_number_unsigned() ? Cell(std::to_string(user.get<std::uint64_t>())) : Cell();
}

void add_job(const json& job, const Times& own, Table* table) {
  const std::string id = id_of(job);
  Filler row(table, id);
  std::size_t hosts = 0, ranks = 0;
  answers::each(job, "hosts", [&](const json& host) {
    ++hosts;
    if (const json& list = answers::member(host, "ranks"); list.is_array()) ranks += list.size();
  });
  row.set("job", answers::text(job, "name")).set("state", answers::text(job, "state")).set("id", id);
  row.set("hosts", Cell(static_cast<double>(hosts))).set("ranks", Cell(static_cast<double>(ranks)));
  row.set("tensors", answers::number(answers::member(job, "plan"), "tensors"));
  row.set("user", user_of(job)).set("leader", answers::text(job, "leader"));
  row.set("remark", remark_of(job));
  if (const auto times = own.find(id); times != own.end()) {
    const Sums sums = sums_of(times->second);
    row.set("sent_bits_per_second", Cell(sums.sent)).set("received_bits_per_second", Cell(sums.received));
    if (const auto all = explain::explain({times->second}); all.ok()) {
      row.set("iteration_s", Cell(all->iteration));
      row.set("exposed_share", exposed_share(*all));
    }
  }
  row.add();
}

void add_jobs(const History& history, Table* table) {
  const Times own = history.own_times();
  answers::each(history.last().local, "jobs", [&](const json& job) { add_job(job, own, table); });
  std::size_t others = 0;
  answers::each(history.last().local, "jobs_of_others", [&](const json& job) {
    Filler row(table, fmt::format("other {}", others++));
    row.set("job", Cell("(another user's)")).set("state", answers::text(job, "state"));
    row.set("user", user_of(job)).set("hosts", answers::number(job, "hosts")).add();
  });
}

void add_silent(const std::map<std::string, std::string>& silent, Table* hosts) {
  for (const auto& [host, why] : silent) Filler(hosts, host).set("host", Cell(host)).note(why).add();
}

void add_host(const explain::HostTimes& host, Table* table) {
  const Sums sums = sums_of(host);
  const double lanes = host.seconds * std::max(host.lanes, 1.0);
  Filler row(table, host.host);
  row.set("host", Cell(host.host)).set("sent_bits_per_second", Cell(sums.sent));
  row.set("received_bits_per_second", Cell(sums.received)).set("stalls_per_second", Cell(sums.stalls));
  row.set("blocked_share", sums.blocked);
  if (host.lane_run) row.set("lane_cpu_share", Cell(*host.lane_run / lanes));
  if (host.lane_runnable) row.set("lane_no_cpu_share", Cell(*host.lane_runnable / lanes));
  row.set("iterations_per_second", Cell(host.iterations / host.seconds));
  row.set("staging_share", Cell(host.staging_share)).set("cpus", Cell(host.cpus));
  row.set("ranks", Cell(static_cast<double>(host.ranks.size()))).add();
}

// How much a count of two statuses has grown; none where the daemon began anew in between.
std::optional<double> growth(const json& before, const json& after, const char* key) {
  const auto old = answers::number(before, key), now = answers::number(after, key);
  return old && now && *now >= *old ? std::optional(*now - *old) : std::nullopt;
}

// The same in a second, of which `seconds` have passed by the daemon's own clock.
std::optional<double> rate(const json& before, const json& after, const char* key, std::optional<double> seconds) {
  const auto grown = growth(before, after, key);
  return grown && seconds && *seconds > 0 ? std::optional(*grown / *seconds) : std::nullopt;
}

// Of all jobs of a daemon, where no job is looked at.
void add_status(const std::string& host, const json& before, const json& after, Table* hosts, Table* classes) {
  // Not the time between the rounds: a host answers when it can, and a round waits for those that do not.
  const std::optional<double> seconds = growth(before, after, "uptime_s");
  const json& lane = answers::member(after, "lane");
  const json& old_lane = answers::member(before, "lane");
  const double lanes = std::max(answers::number(lane, "lanes").value_or(1), 1.0);
  double sent = 0, received = 0;
  bool known = false;
  std::size_t index = 0, jobs = 0;
  const json& old_classes = answers::member(old_lane, "classes");
  answers::each(lane, "classes", [&](const json& cls) {
    const json old = old_classes.is_array() && index < old_classes.size() ? old_classes[index] : json();
    ++index;
    const auto out = rate(old, cls, "sent_bytes", seconds), in = rate(old, cls, "received_bytes", seconds);
    known = known || out || in;
    sent += kBits * out.value_or(0);
    received += kBits * in.value_or(0);
    Filler row(classes, fmt::format("{}/{:02}", host, index));
    row.set("host", Cell(host)).set("class", answers::text(cls, "name"));
    row.set("window_bytes", answers::number(cls, "window_bytes")).set("dscp", answers::number(cls, "dscp_in_force"));
    if (out) row.set("sent_bits_per_second", Cell(kBits * *out));
    if (in) row.set("received_bits_per_second", Cell(kBits * *in));
    row.set("operations_per_second", rate(old, cls, "completed_tensors", seconds)).add();
  });
  answers::each(after, "jobs", [&](const json&) { ++jobs; });
  Filler row(hosts, host);
  row.set("host", Cell(host)).set("jobs", Cell(static_cast<double>(jobs)));
  row.set("version", answers::text(after, "version")).set("uptime_s", answers::number(after, "uptime_s"));
  if (known) row.set("sent_bits_per_second", Cell(sent)).set("received_bits_per_second", Cell(received));
  if (const auto cpu = rate(old_lane, lane, "cpu_seconds", seconds)) row.set("lane_cpu_share", Cell(*cpu / lanes));
  row.add();
}

void add_classes(const explain::HostTimes& host, Table* table) {
  for (std::size_t c = 0; c < host.classes.size(); ++c) {
    const explain::ClassTimes& cls = host.classes[c];
    Filler row(table, fmt::format("{}/{:02}", host.host, c));
    row.set("host", Cell(host.host)).set("class", Cell(cls.name));
    row.set("sent_bits_per_second", Cell(kBits * cls.sent_bytes / host.seconds));
    row.set("received_bits_per_second", Cell(kBits * cls.received_bytes / host.seconds));
    row.set("demoted_bits_per_second", Cell(kBits * cls.demoted_bytes / host.seconds));
    if (cls.sends > 0) row.set("queue_s", Cell(cls.mean_queue));
    if (cls.operations > 0) row.set("completion_s", Cell(cls.mean_completion));
    row.set("stalls_per_second", Cell(cls.window_stalls / host.seconds));
    row.set("operations_per_second", Cell(cls.operations / host.seconds));
    row.set("window_bytes", Cell(cls.window_bytes)).set("limit_bits_per_second", cls.limit).add();
  }
}

// Adds up what the hosts say of each class; means count as often as a host has had operations.
void add_up_classes(const Table& of_hosts, Table* table) {
  struct Mean {
    double sum = 0, weight = 0;
  };
  std::map<std::string, std::size_t> rows;
  std::map<std::pair<std::string, std::string>, Mean> means;
  const std::size_t name = of_hosts.column("class"), operations = of_hosts.column("operations_per_second");
  for (const Row& from : of_hosts.rows) {
    const std::string* cls = std::get_if<std::string>(&from.cells[name]);
    if (cls == nullptr) continue;
    const auto [at, fresh] = rows.emplace(*cls, table->rows.size());
    if (fresh) Filler(table, from.key.substr(from.key.rfind('/') + 1)).set("class", Cell(*cls)).add();
    for (std::size_t c = 1; c < table->columns.size(); ++c) {
      const Column& column = table->columns[c];
      const double* value = std::get_if<double>(&from.cells[of_hosts.column(column.key)]);
      if (value == nullptr) continue;
      Cell& cell = table->rows[at->second].cells[c];
      const double* weight = std::get_if<double>(&from.cells[operations]);
      if (column.unit == Unit::kSeconds) {
        Mean& mean = means[{*cls, column.key}];
        mean.weight += weight == nullptr ? 0 : *weight + 1e-9;
        mean.sum += weight == nullptr ? 0 : *value * (*weight + 1e-9);
        if (mean.weight > 0) cell = mean.sum / mean.weight;
      } else if (column.key == "dscp" || column.key == "window_bytes" || column.key == "limit_bits_per_second") {
        cell = *value;
      } else {
        const double* old = std::get_if<double>(&cell);
        cell = *value + (old == nullptr ? 0 : *old);
      }
    }
  }
}

void add_peers(const explain::HostTimes& host, Table* table) {
  for (std::size_t i = 0; i < host.connections.size(); ++i) {
    const explain::Connection& c = host.connections[i];
    Filler row(table, fmt::format("{}/{}/{}/{}", host.host, c.peer, c.cls, i));
    row.set("peer", Cell(c.peer)).set("host", Cell(host.host)).set("class", Cell(c.cls));
    row.set("rtt_s", Cell(c.rtt)).set("min_rtt_s", Cell(c.min_rtt));
    if (c.segments > 0) row.set("resent_share", Cell(c.resent / c.segments));
    row.set("acked_bits_per_second", Cell(kBits * c.acked_bytes / host.seconds));
    row.set("busy_share", Cell(std::min(c.busy / host.seconds, 1.0))).add();
  }
}

void add_rails(const explain::HostTimes& host, Table* table) {
  const std::vector<explain::LinkTimes> sent = explain::links_of(host, true), received = explain::links_of(host, false);
  for (std::size_t r = 0; r < host.rails.size(); ++r) {
    const explain::RailTimes& rail = host.rails[r];
    Filler row(table, fmt::format("{}/{}", host.host, r));
    row.set("nic", Cell(rail.nic)).set("host", Cell(host.host)).set("link_bits_per_second", rail.speed);
    row.set("sent_bits_per_second", Cell(kBits * rail.sent / host.seconds));
    row.set("received_bits_per_second", Cell(kBits * rail.received / host.seconds));
    if (rail.nic_sent && rail.nic_received) {
      const double out = kBits * *rail.nic_sent / host.seconds, in = kBits * *rail.nic_received / host.seconds;
      row.set("nic_sent_bits_per_second", Cell(out)).set("nic_received_bits_per_second", Cell(in));
    }
    const explain::LinkTimes *out = find_link(sent, r), *in = find_link(received, r);
    if (out != nullptr || in != nullptr)
      row.set("use", Cell(std::max(out == nullptr ? 0 : use_of(*out, host), in == nullptr ? 0 : use_of(*in, host))));
    row.add();
  }
}

void add_ranks(const explain::HostTimes& host, const std::map<std::uint32_t, const explain::RankLag*>& lags,
               Table* table) {
  for (const explain::RankTimes& rank : host.ranks) {
    Filler row(table, fmt::format("{:010}", rank.rank));
    row.set("rank", Cell(static_cast<double>(rank.rank))).set("host", Cell(host.host));
    if (const auto lag = lags.find(rank.rank); lag != lags.end())
      row.set("lag_s", Cell(lag->second->lag)).set("computing_s", lag->second->computing);
    if (rank.stream_waits == 0) row.set("blocked_share", Cell(std::min(rank.blocked / host.seconds, 1.0)));
    if (rank.operations > 0) row.set("wait_s", Cell(rank.mean_wait));
    if (rank.run) row.set("cpu_share", Cell(std::min(*rank.run / host.seconds, 1.0)));
    if (rank.runnable) row.set("no_cpu_share", Cell(std::min(*rank.runnable / host.seconds, 1.0)));
    row.set("operations_per_second", Cell(rank.operations / host.seconds)).add();
  }
}

void explain_job(const Times& times, Picture* picture) {
  Table& ranks = picture->tables[static_cast<std::size_t>(View::kRanks)];
  std::vector<explain::HostTimes> hosts;
  for (const auto& [host, one] : times) hosts.push_back(one);
  const auto all = explain::explain(hosts);
  std::map<std::uint32_t, const explain::RankLag*> lags;
  if (all.ok()) {
    picture->iteration = all->iteration;
    picture->exposed = exposed_share(*all);
    const explain::Finding& first = all->findings.front();
    picture->finding = fmt::format("{} ({}): {}", explain::cause_name(first.cause),
                                   explain::confidence_name(first.confidence), first.where);
    for (const explain::RankLag& lag : all->ranks) lags[lag.rank] = &lag;
  }
  for (const explain::HostTimes& host : hosts) add_ranks(host, lags, &ranks);
}

// All views but that of jobs, of the job that is looked at.
void show_job(const History& history, Picture* picture) {
  const Answers& last = history.last();
  const auto table = [picture](View view) { return &picture->tables[static_cast<std::size_t>(view)]; };
  answers::each(last.local, "jobs", [&](const json& job) {
    if (id_of(job) != last.job) return;
    picture->job_name = answers::text(job, "name");
    picture->job_state = answers::text(job, "state");
  });
  std::map<std::string, std::string> silent = last.silent;
  const Times times = history.job_times(&silent);
  for (const auto& [host, one] : times) {
    add_host(one, table(View::kHosts));
    add_classes(one, &picture->host_classes);
    add_peers(one, table(View::kPeers));
    add_rails(one, table(View::kRails));
  }
  // After its first answer a host has no rates.
  for (const auto& [host, report] : last.reports) {
    if (!times.contains(host) && !silent.contains(host))
      Filler(table(View::kHosts), host).set("host", Cell(host)).add();
  }
  add_silent(silent, table(View::kHosts));
  picture->hosts = table(View::kHosts)->rows.size();
  picture->silent = silent.size();
  explain_job(times, picture);
}

}  // namespace

Picture make_picture(const History& history) {
  const Answers& last = history.last();
  Picture picture;
  picture.host = last.host;
  picture.error = last.error;
  picture.asked = last.asked;
  picture.job = last.job;
  picture.no_job = last.no_job;
  for (std::size_t v = 0; v < kViews; ++v) picture.tables[v] = empty_table(static_cast<View>(v));
  picture.host_classes = empty_table(View::kClasses);
  picture.host_classes.columns.push_back({"host", "HOST", Unit::kText, 95, "its host"});
  add_jobs(history, &picture.tables[static_cast<std::size_t>(View::kJobs)]);
  if (!last.job.empty()) {
    show_job(history, &picture);
  } else if (last.asked.empty()) {
    Table* hosts = &picture.tables[static_cast<std::size_t>(View::kHosts)];
    std::map<std::string, json> statuses = last.statuses;
    if (last.local.is_object()) statuses[last.host] = last.local;
    for (const auto& [host, status] : statuses)
      add_status(host, history.status_before(host), status, hosts, &picture.host_classes);
    add_silent(last.silent, hosts);
    picture.hosts = hosts->rows.size();
    picture.silent = last.silent.size();
  }
  add_up_classes(picture.host_classes, &picture.tables[static_cast<std::size_t>(View::kClasses)]);
  return picture;
}

json to_json(const Picture& picture) {
  const auto known = [](const std::optional<double>& value) { return value ? json(*value) : json(); };
  json all{{"host", picture.host},
           {"job", picture.job.empty() ? json() : json(picture.job)},
           {"job_name", picture.job_name},
           {"job_state", picture.job_state},
           {"iteration_s", known(picture.iteration)},
           {"exposed_share", known(picture.exposed)},
           {"finding", picture.finding},
           {"hosts_without_answer", picture.silent},
           {"classes_of_hosts", to_json(picture.host_classes)}};
  for (std::size_t v = 0; v < kViews; ++v) all[std::string(kViewNames[v])] = to_json(picture.tables[v]);
  return all;
}

}  // namespace tensorlane::top
