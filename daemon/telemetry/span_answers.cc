#include "daemon/telemetry/span_answers.h"

#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>

#include "common/json/json.h"

namespace tensorlane::telemetry {
namespace {

constexpr Bytes kMostAnswer = mib(15);
constexpr const char* kWhere = "the question for spans";

struct Wanted {
  SpanStore::Filter filter;
  Bytes most = kMostAnswer;
  bool count = false;
};

Result<Wanted> read(const ports::Question& question) {
  constexpr double kMostSeconds = 3600;
  const nlohmann::json args = nlohmann::json::parse(question.args, nullptr, false);
  Wanted wanted;
  const bool all = question.of_operator() || (question.here && question.uid == geteuid());
  if (!all) wanted.filter.user = question.uid;
  if (!question.here) wanted.filter.host = question.from;
  try {
    const double seconds = std::clamp(args.value("seconds", to_seconds(wanted.filter.last)), 0.0, kMostSeconds);
    wanted.filter.last = Duration(static_cast<std::int64_t>(seconds * 1e9));
    wanted.filter.job = args.value("job", "");
    const double most = args.value("most_bytes", static_cast<double>(kMostAnswer.value));
    wanted.most = Bytes(static_cast<std::uint64_t>(std::clamp(most, 0.0, static_cast<double>(kMostAnswer.value))));
    wanted.count = args.value("count", false);
  } catch (const nlohmann::json::exception&) {
    return Status(Code::kInvalidArgument, "it asks for something else", kWhere,
                  "install the same release of command and daemon");
  }
  return wanted;
}

}  // namespace

ports::Answerer span_answerer(SpanStore& store) {
  return [&store](const ports::Question& question, const ports::Answered& done) {
    if (!store.remembers())
      return done(Status(Code::kNotFound, "this daemon keeps no spans in memory", "spans: off in daemon.yaml",
                         "leave `spans` out of daemon.yaml"));
    Result<Wanted> wanted = read(question);
    if (!wanted.ok()) return done(wanted.status());
    const auto answer = [&store, wanted = std::move(*wanted), done] {
      done(wanted.count ? nlohmann::json{{"spans", store.count(wanted.filter)}}.dump()
                        : store.packed(wanted.filter, wanted.most));
    };
    if (!store.later(question.uid, answer))
      done(Status(Code::kResourceExhausted, "too many questions for spans wait", kWhere, "ask again later"));
  };
}

}  // namespace tensorlane::telemetry
