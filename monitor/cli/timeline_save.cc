#include "monitor/cli/timeline_save.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "common/base/text.h"
#include "common/files/careful.h"
#include "common/json/json.h"
#include "common/spans/packed.h"
#include "monitor/answers/parse.h"
#include "monitor/cli/daemon_call.h"

namespace tensorlane::cli {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr const char* kWhat = "the timeline";
// With a host's spans, which are many; and with their number: while one host is silent, spans of the others age.
constexpr Duration kPatience = seconds(20), kCountPatience = seconds(3);
// About what a span takes in an answer, and what the answers of one question may take together.
constexpr std::uint64_t kSpanBytes = 80, kMostAtOnce = std::uint64_t{24} << 20;

nlohmann::json args_of(const SaveOptions& options) {
  nlohmann::json args = {{"seconds", to_seconds(options.last)}};
  if (!options.job.empty()) args["job"] = options.job;
  return args;
}

// As a timeline, oldest first.
Status write_events(const spans::Unpacked& unpacked, const std::string& path) {
  constexpr std::size_t kPiece = std::size_t{256} << 10;
  TL_ASSIGN_OR_RETURN(const int file, files::create(path, kWhat));
  std::string text = spans::header(unpacked.source);
  Status written;
  for (auto span = unpacked.spans.rbegin(); span != unpacked.spans.rend() && written.ok(); ++span) {
    spans::append_event(unpacked.source, *span, &text);
    if (text.size() >= kPiece) written = files::write_all(file, std::exchange(text, {}), path, kWhat);
  }
  if (written.ok()) written = files::write_all(file, text + std::string(spans::kEnd), path, kWhat);
  ::close(file);
  return written;
}

// A daemon that lies may call a host what it likes.
bool is_file_name(const std::string& name) {
  return !name.empty() && name.front() != '.' && name.find('/') == std::string::npos && is_printable(name);
}

Saved::Host save_answer(const DaemonAnswer& answer, const std::string& path) {
  Saved::Host host{answer.host, path, 0, 0, answer.text.status()};
  if (!is_file_name(answer.host)) {
    host.error = Status(Code::kCorrupt, "this is no name of a host", printable(answer.host),
                        "ask a daemon that you trust, of the same release");
  }
  if (!host.error.ok()) return host;
  const Result<spans::Unpacked> unpacked = spans::unpack(*answer.text);
  host.error = unpacked.ok() ? write_events(*unpacked, path) : unpacked.status();
  if (!host.error.ok()) return host;
  host.spans = unpacked->spans.size();
  host.left_out = unpacked->left_out;
  return host;
}

Status no_spans(const SaveOptions& options) {
  return {Code::kNotFound, fmt::format("there are no spans of the last {:.0f} s", to_seconds(options.last)),
          options.job.empty() ? options.socket : fmt::format("job '{}'", options.job),
          options.job.empty() ? "ask sooner after something was sent, as the user of the job or as root"
                              : "name a job that `tensorlane status` shows, or ask sooner after it sent something, as "
                                "its user or as root"};
}

Result<Saved> save_one(const SaveOptions& options) {
  TL_ASSIGN_OR_RETURN(const DaemonAnswers all,
                      ask_daemons(options.socket, {.kind = "spans", .args = args_of(options), .patience = kPatience}));
  Saved saved;
  saved.hosts.push_back(save_answer(all.answers.front(), options.out));
  TL_RETURN_IF_ERROR(saved.hosts.front().error);
  if (saved.hosts.front().spans == 0) {
    ::unlink(options.out.c_str());
    return no_spans(options);
  }
  return saved;
}

// How many spans each host has.
Result<DaemonAnswers> count(const SaveOptions& options) {
  nlohmann::json args = args_of(options);
  args["count"] = true;
  DaemonQuestion question{.kind = "spans", .args = args, .job = options.job, .patience = kCountPatience};
  if (!options.job.empty()) {
    Result<DaemonAnswers> of_job = ask_daemons(options.socket, question);
    if (of_job.ok()) return of_job;
  }
  question.job.clear();  // it may be over
  question.all_hosts = true;
  return ask_daemons(options.socket, question);
}

std::uint64_t counted(const std::string& text) {
  const nlohmann::json answer = answers::parse(text);
  return answer.is_object() && answer.contains("spans") && answer["spans"].is_number_unsigned()
             ? answer["spans"].get<std::uint64_t>()
             : 0;
}

// As many hosts at once as their answers fit together. What is asked for was the last at `begun`.
Status fetch(const SaveOptions& options, SteadyClock::time_point begun, const DaemonAnswers& counts,
             const std::string& folder, Saved* saved) {
  std::vector<std::string> hosts;
  std::uint64_t bytes = 0;
  const auto ask = [&]() -> Status {
    if (hosts.empty()) return {};
    nlohmann::json args = args_of(options);
    args["most_bytes"] = kMostAtOnce / hosts.size();
    args["seconds"] = to_seconds(options.last) + std::chrono::duration<double>(SteadyClock::now() - begun).count();
    TL_ASSIGN_OR_RETURN(
        const DaemonAnswers all,
        ask_daemons(options.socket, {.kind = "spans", .args = args, .hosts = hosts, .patience = kPatience}));
    for (const DaemonAnswer& answer : all.answers) {
      saved->hosts.push_back(save_answer(answer, folder + "/" + answer.host + ".json"));
      const Saved::Host& host = saved->hosts.back();
      if (host.error.ok() && host.spans == 0) ::unlink(host.file.c_str());
    }
    hosts.clear();
    bytes = 0;
    return {};
  };
  for (const DaemonAnswer& answer : counts.answers) {
    if (!answer.text.ok()) {
      saved->hosts.push_back({answer.host, {}, 0, 0, answer.text.status()});
      continue;
    }
    const std::uint64_t more = counted(*answer.text) * kSpanBytes;
    if (more == 0) continue;
    if (bytes + more > kMostAtOnce) TL_RETURN_IF_ERROR(ask());
    hosts.push_back(answer.host);
    bytes += more;
  }
  return ask();
}

Result<Saved> save_all(const SaveOptions& options) {
  const auto begun = SteadyClock::now();
  TL_ASSIGN_OR_RETURN(const DaemonAnswers counts, count(options));
  const bool into_folder = std::filesystem::is_directory(options.out);
  std::string folder = options.out;
  if (!into_folder) {
    folder += ".XXXXXX";
    if (mkdtemp(folder.data()) == nullptr)
      return Status(Code::kUnavailable, fmt::format("cannot write {}: {}", kWhat, std::strerror(errno)), options.out,
                    "choose a path in a folder that this process may write");
  }
  Saved saved;
  Status status = fetch(options, begun, counts, folder, &saved);
  timeline::MergeOptions merge;
  merge.out = options.out;
  for (const Saved::Host& host : saved.hosts) {
    if (host.error.ok() && host.spans > 0) merge.files.push_back(host.file);
  }
  if (status.ok() && merge.files.empty()) {
    const auto why = std::ranges::find_if(saved.hosts, [](const Saved::Host& host) { return !host.error.ok(); });
    status = why == saved.hosts.end() ? no_spans(options) : why->error;
  }
  if (status.ok() && !into_folder) {
    Result<timeline::MergeSummary> merged = timeline::merge(merge);
    if (merged.ok()) {
      saved.merged = std::move(*merged);
    } else {
      status = merged.status();
    }
  }
  std::error_code error;
  if (!into_folder) std::filesystem::remove_all(folder, error);
  if (!status.ok()) return status;
  for (Saved::Host& host : saved.hosts) {
    if (!into_folder) host.file.clear();
  }
  return saved;
}

}  // namespace

Result<Saved> save_spans(const SaveOptions& options) {
  return options.all_hosts ? save_all(options) : save_one(options);
}

}  // namespace tensorlane::cli
