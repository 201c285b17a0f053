#include "monitor/report/figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "common/base/text.h"
#include "monitor/answers/times.h"

namespace tensorlane::report {

using nlohmann::json;

namespace {

constexpr double kBits = 8;

// Of the hosts that have told twice; `wrong` gets what makes no sense. Without `connections` it takes less time.
std::vector<explain::HostTimes> between(const Reports& before, const Reports& after, bool connections,
                                        std::map<std::string, std::string>* wrong) {
  std::vector<explain::HostTimes> all;
  for (const auto& [host, now] : after) {
    const auto old = before.find(host);
    if (old == before.end()) continue;
    json copy;
    if (!connections && now.is_object()) {
      copy = now;
      copy.erase("connections");
    }
    auto times = answers::times_between(host, old->second, connections ? now : copy);
    if (times.ok()) {
      all.push_back(std::move(*times));
    } else if (wrong != nullptr) {
      wrong->emplace(host, times.status().what());
    }
  }
  return all;
}

std::vector<ClassFigures> classes_of(const std::vector<explain::HostTimes>& hosts) {
  struct Sums {
    ClassFigures figures;
    double sends = 0, queue = 0, operations = 0, completion = 0;
  };
  std::vector<Sums> all;
  for (const explain::HostTimes& host : hosts) {
    for (const explain::ClassTimes& cls : host.classes) {
      auto at = std::ranges::find_if(all, [&](const Sums& sums) { return sums.figures.name == cls.name; });
      if (at == all.end()) at = all.insert(all.end(), Sums{{cls.name}});
      at->figures.sent += kBits * cls.sent_bytes / host.seconds;
      at->figures.received += kBits * cls.received_bytes / host.seconds;
      at->figures.demoted += kBits * cls.demoted_bytes / host.seconds;
      at->sends += cls.sends;
      at->queue += cls.sends * cls.mean_queue;
      at->operations += cls.operations;
      at->completion += cls.operations * cls.mean_completion;
    }
  }
  std::vector<ClassFigures> classes;
  for (Sums& sums : all) {
    if (sums.sends > 0) sums.figures.queue = sums.queue / sums.sends;
    if (sums.operations > 0) sums.figures.completion = sums.completion / sums.operations;
    classes.push_back(std::move(sums.figures));
  }
  return classes;
}

json known(const auto& value) {
  return value ? json(*value) : json();
}

json times_json(const Figures& figures) {
  json times = json::array();
  for (const TimePoint& point : figures.times)
    times.push_back({{"from_s", point.from}, {"to_s", point.to}, {"iteration_s", point.iteration}});
  return times;
}

json findings_json(const Figures& figures) {
  json findings = json::array();
  for (const explain::Finding& f : figures.explanation.findings) {
    findings.push_back({{"cause", explain::cause_name(f.cause)},
                        {"confidence", explain::confidence_name(f.confidence)},
                        {"seconds", f.seconds},
                        {"where", f.where},
                        {"evidence", f.evidence},
                        {"help", f.help}});
  }
  return findings;
}

json verify_json(const VerifyFigures& verify) {
  const auto cell_json = [](const VerifyCell& cell) {
    return json{{"passed", cell.passed}, {"failed", cell.failed}, {"untested", cell.untested}};
  };
  json cells = json::array();
  for (const auto& [at, cell] : verify.cells) {
    json one = cell_json(cell);
    one["from"] = verify.hosts[at.first];
    one["to"] = verify.hosts[at.second];
    cells.push_back(std::move(one));
  }
  return {{"hosts", verify.hosts},       {"other_hosts", verify.other_hosts},
          {"pairs", std::move(cells)},   {"all", cell_json(verify.all)},
          {"findings", verify.findings}, {"other_findings", verify.other_findings}};
}

}  // namespace

void Watch::Point::append(Point next) {
  const auto n = static_cast<double>(looks), m = static_cast<double>(next.looks);
  time.iteration = (n * time.iteration + m * next.time.iteration) / (n + m);
  time.to = next.time.to;
  looks += next.looks;
  for (const auto& [rank, lag] : next.lags) {
    Mean& mean = lags[rank];
    mean.sum += lag.sum;
    mean.count += lag.count;
  }
}

// Where there are too many points, neighbours become one.
void Watch::add_point(Point point) {
  if (!points_.empty() && points_.back().looks < looks_) return points_.back().append(std::move(point));
  points_.push_back(std::move(point));
  if (points_.size() <= kMostTimes) return;
  looks_ *= 2;
  for (std::size_t i = 0; i < points_.size(); i += 2) {
    if (i > 0) points_[i / 2] = std::move(points_[i]);
    if (i + 1 < points_.size()) points_[i / 2].append(std::move(points_[i + 1]));
  }
  points_.resize((points_.size() + 1) / 2);
}

void Watch::add(double at, Reports reports) {
  ended_ = at;
  if (!any_) {
    any_ = true;
    began_ = based_ = at;
    first_ = base_ = reports;
    last_ = std::move(reports);
    return;
  }
  // A host that has come later, or has missed the first time, is watched from here on.
  for (const auto& [host, report] : reports) {
    first_.emplace(host, report);
    base_.emplace(host, report);
    silent_.erase(host);
    last_[host] = report;
  }
  const auto all = explain::explain(between(base_, reports, false, nullptr));
  if (!all.ok()) return;  // goes on until an iteration ends
  Point point{{based_ - began_, at - began_, all->iteration}};
  for (const explain::RankLag& rank : all->ranks) point.lags[rank.rank] = {rank.lag, 1};
  add_point(std::move(point));
  base_ = std::move(reports);
  based_ = at;
}

Result<Figures> Watch::figures() const {
  Figures figures;
  figures.seconds = ended_ - began_;
  figures.silent = silent_;
  const std::vector<explain::HostTimes> hosts = between(first_, last_, true, &figures.silent);
  if (hosts.empty() && !figures.silent.empty()) {
    const auto& [host, why] = *figures.silent.begin();
    return Status(Code::kUnavailable, "no host of the job has said anything that can be used", host, why);
  }
  Result<explain::Explanation> explained = explain::explain(hosts);
  if (!explained.ok()) {
    if (figures.silent.empty()) return explained.status();
    const auto& [host, why] = *figures.silent.begin();
    return explain::beside_silence(explained.status(), printable(host), printable(why));
  }
  figures.explanation = *std::move(explained);
  figures.hosts = hosts.size();
  figures.classes = classes_of(hosts);
  for (const Point& point : points_) figures.times.push_back(point.time);
  const std::vector<explain::RankLag>& ranks = figures.explanation.ranks;
  for (std::size_t r = 0; r < std::min(ranks.size(), kMostRanks); ++r) {
    RankFigures rank{ranks[r].rank, ranks[r].host, ranks[r].lag, ranks[r].computing, {}};
    for (const Point& point : points_) {
      const auto found = point.lags.find(rank.rank);
      const bool known = found != point.lags.end();
      rank.lags.push_back(known ? std::optional(found->second.sum / found->second.count) : std::nullopt);
    }
    figures.ranks.push_back(std::move(rank));
  }
  figures.other_ranks = ranks.size() - figures.ranks.size();
  return figures;
}

json to_json(const Figures& figures) {
  json classes = json::array(), ranks = json::array(), tags = json::array(), silent = json::array();
  for (const ClassFigures& cls : figures.classes) {
    classes.push_back({{"class", cls.name},
                       {"sent_bits_per_second", cls.sent},
                       {"received_bits_per_second", cls.received},
                       {"demoted_bits_per_second", cls.demoted},
                       {"queue_s", known(cls.queue)},
                       {"completion_s", known(cls.completion)}});
  }
  for (const RankFigures& rank : figures.ranks) {
    json lags = json::array();
    for (const auto& lag : rank.lags) lags.push_back(known(lag));
    ranks.push_back({{"rank", rank.rank},
                     {"host", rank.host},
                     {"lag_s", rank.lag},
                     {"computing_s", known(rank.computing)},
                     {"lags_s", std::move(lags)}});
  }
  for (const TagFigures& tag : figures.tags) {
    tags.push_back({{"class", tag.cls},
                    {"transport", tag.transport},
                    {"asked_dscp", known(tag.asked_dscp)},
                    {"asked_pcp", known(tag.asked_pcp)},
                    {"dscp", known(tag.dscp)},
                    {"pcp", known(tag.pcp)},
                    {"flows", tag.flows},
                    {"as_asked", tag.known() ? json(!tag.wrong()) : json()}});
  }
  for (const auto& [host, why] : figures.silent) silent.push_back({{"host", host}, {"error", why}});
  return {{"job", figures.job},
          {"seconds", figures.seconds},
          {"hosts", figures.hosts},
          {"hosts_without_answer", std::move(silent)},
          {"iteration_s", figures.explanation.iteration},
          {"iterations", figures.explanation.iterations},
          {"exposed_s", known(figures.explanation.exposed)},
          {"efficiency", known(figures.explanation.efficiency)},
          {"times", times_json(figures)},
          {"findings", findings_json(figures)},
          {"classes", std::move(classes)},
          {"ranks", std::move(ranks)},
          {"other_ranks", figures.other_ranks},
          {"tags", std::move(tags)},
          {"wrong_flows", figures.wrong_flows},
          {"other_wrong_flows", figures.other_wrong_flows},
          {"verify", figures.verify ? verify_json(*figures.verify) : json()}};
}

}  // namespace tensorlane::report
