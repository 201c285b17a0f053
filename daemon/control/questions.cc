#include "daemon/control/questions.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "common/protocol/session.h"

namespace tensorlane::control {

using nlohmann::json;

namespace {

constexpr std::size_t kPart = std::size_t{256} << 10;  // of an answer in one message
constexpr std::uint32_t kMostParts = static_cast<std::uint32_t>((kMaxAnswer + kPart - 1) / kPart);
constexpr std::size_t kMostBytes = std::size_t{40} << 20;  // of all answers to one question, as JSON
constexpr std::size_t kMaxKind = 32;
constexpr const char* kWhere = "a question to the daemon";

Status bad_question(std::string what, std::string fix) {
  return {Code::kInvalidArgument, std::move(what), kWhere, std::move(fix)};
}

std::string dump(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

// At most so many bytes has the text as a string of JSON.
std::size_t json_bytes(std::string_view text) {
  std::size_t bytes = 0;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool control = byte < 0x20 || byte == 0x7f, quoted = c == '"' || c == '\\', wide = byte >= 0x80;
    bytes += control ? 6 : wide ? 3 : quoted ? 2 : 1;
  }
  return bytes;
}

// A byte stands for a question.
RateLimit questions_in_a_second(std::uint64_t count) {
  return {BitsPerSecond(8 * count), Bytes(count)};
}

}  // namespace

json error_object(const Status& status) {
  return {
      {"code", code_name(status.code())}, {"what", status.what()}, {"where", status.where()}, {"fix", status.fix()}};
}

Questions::Questions(std::string host, ports::Answerers answerers, QuestionEnvironment& environment,
                     std::uint64_t last_number)
    : host_(std::move(host)),
      answerers_(std::move(answerers)),
      environment_(environment),
      door_(std::make_shared<Door>()),
      last_number_(last_number) {
  door_->environment = &environment;
}

Questions::~Questions() {
  const std::lock_guard lock(door_->mutex);
  door_->environment = nullptr;
}

ports::Answered Questions::on_control(std::function<void(Result<std::string>)> take) const {
  return [door = door_, take = std::move(take)](Result<std::string> answer) {
    const std::lock_guard lock(door->mutex);
    if (door->environment != nullptr)
      door->environment->later([take, answer = std::move(answer)]() mutable { take(std::move(answer)); });
  };
}

// ---- of clients of this host ----

Result<Questions::Request> Questions::parse(std::uint32_t uid, const std::string& text) const {
  const json question = json::parse(text, nullptr, false);
  if (!question.is_object()) return bad_question("it is no JSON object", "ask with {\"kind\": \"status\"}");
  Request request;
  json args = json::object();
  const auto get = [&question](const char* key) { return question.contains(key) ? question[key] : json(); };
  const json kind = get("kind"), wanted = get("args"), hosts = get("hosts"), job = get("job"), limit = get("timeout_s");
  if (!kind.is_string() || kind.get_ref<const std::string&>().size() > kMaxKind)
    return bad_question("it has no kind", "name one as text, such as \"status\"");
  request.kind = kind;
  if (!wanted.is_null() && !wanted.is_object())
    return bad_question("its args are no object", "write {} or leave it out");
  if (wanted.is_object()) args = wanted;
  if (!limit.is_null() &&
      (!limit.is_number() || !(limit.get<double>() > 0) || limit.get<double>() > to_seconds(kMostPatience))) {
    return bad_question("timeout_s is no number of seconds", fmt::format("at most {}", to_seconds(kMostPatience)));
  }
  request.patience = limit.is_null() ? kPatience : Duration(static_cast<std::int64_t>(limit.get<double>() * 1e9));
  if (job.is_string()) {
    TL_ASSIGN_OR_RETURN(auto found, environment_.hosts_of_job(uid, job));
    args["job_id"] = found.first;
    request.hosts = std::move(found.second);
  } else if (hosts.is_null()) {
    request.hosts = {host_};
  } else if (hosts == "all") {
    request.hosts = environment_.hosts();
  } else {
    const std::vector<std::string> known = environment_.hosts();
    const std::set<std::string_view> names(known.begin(), known.end());
    for (const json& host : hosts.is_array() ? hosts : json::array({hosts})) {
      if (!host.is_string() || !names.contains(host.get_ref<const std::string&>()))
        return bad_question(fmt::format("the fabric file has no host {}", dump(host)), "name hosts of the fabric file");
      request.hosts.push_back(host);
    }
  }
  request.args = dump(args);
  return request;
}

Questions::Asker& Questions::asker(std::uint32_t uid) {
  return askers_.try_emplace(uid, Asker{0, 0, TokenBucket(questions_in_a_second(kRate))}).first->second;
}

Status Questions::admit(std::uint32_t uid, Time now) {
  Asker& asker = this->asker(uid);
  const bool often = uid != 0 && asker.rate.empty(now);
  if (often || asker.open >= kMostOpen) {
    return {Code::kResourceExhausted, "you ask too much of the daemon", kWhere,
            fmt::format("ask less than {} at once and {} in a second", kMostOpen, kRate)};
  }
  asker.rate.take(now, Bytes(1));
  return {};
}

void Questions::ask(ports::SessionId session, std::uint32_t request, std::uint32_t uid, const std::string& text,
                    Time now) {
  const Status admitted = admit(uid, now);
  Result<Request> parsed = admitted.ok() ? parse(uid, text) : admitted;
  if (!parsed.ok())
    return environment_.reply(session, request, dump({{"host", host_}, {"error", error_object(parsed.status())}}));
  const auto reply = [this, session, request](const json& all) { environment_.reply(session, request, dump(all)); };
  open(uid, std::move(*parsed), reply, now);
}

void Questions::ask_host(const std::string& host, const std::string& kind, const json& args, Duration patience,
                         ports::Answered done, Time now) {
  const Status admitted = admit(0, now);
  if (!admitted.ok()) return done(admitted);
  const auto take = [done = std::move(done)](const json& all) {
    const json& one = all["answers"].front();
    if (one.contains("text")) return done(one["text"].get<std::string>());
    const json& error = one["error"];
    done(Status(Code::kUnavailable, error["what"], error["where"], error["fix"]));
  };
  open(0, {kind, dump(args), {host}, patience}, take, now);
}

void Questions::open(std::uint32_t uid, Request request, std::function<void(json)> done, Time now) {
  ++asker(uid).open;
  const std::uint64_t number = ++last_number_;
  Asked& asked = asked_[number];
  asked.uid = uid;
  asked.done = std::move(done);
  asked.patience = request.patience;
  asked.deadline = now + request.patience;
  for (const std::string& host : request.hosts) asked.hosts[host];
  asked.open = asked.hosts.size();
  Message message{MessageType::kAsk, JobId(number), Epoch(0), 0, {}};
  message.body = json::array({uid, request.kind, request.args, request.patience.value});
  for (auto& [host, awaited] : asked.hosts) {
    if (host == host_) continue;
    environment_.need(host);
    if (!environment_.send(host, message))
      settle(asked, host, Status(Code::kUnavailable, "too many messages wait for it", host, "ask again later"));
  }
  if (asked.open == 0) return finish(number);  // no host took it
  if (!asked.hosts.contains(host_)) return;
  const auto take = [this, number](Result<std::string> answer) {
    const auto found = asked_.find(number);
    if (found == asked_.end()) return;
    settle(found->second, host_, std::move(answer));
    if (found->second.open == 0) finish(number);
  };
  answer_here(request.kind, {uid, host_, true, environment_.jobs_shown(uid, host_), request.args}, on_control(take));
}

void Questions::answer_here(std::string_view kind, const ports::Question& question, ports::Answered done) const {
  const auto found = answerers_.find(kind);
  if (found != answerers_.end()) return found->second(question, std::move(done));
  std::string kinds;
  for (const auto& [known, answerer] : answerers_) kinds += (kinds.empty() ? "" : ", ") + known;
  done(Status(Code::kNotFound, fmt::format("the daemon of host {} answers no questions of kind '{}'", host_, kind),
              kWhere, fmt::format("ask one of {}, or install the same release on all hosts", kinds)));
}

bool Questions::count(Asked& asked, Awaited& awaited, std::size_t bytes) {
  Asker& asker = this->asker(asked.uid);
  if (asked.bytes - awaited.bytes + bytes > kMostBytes) return false;
  if (asker.bytes - awaited.bytes + bytes > kMostOpenBytes) return false;
  for (std::size_t* sum : {&asked.bytes, &asker.bytes}) *sum = *sum - awaited.bytes + bytes;
  awaited.bytes = bytes;
  return true;
}

void Questions::settle(Asked& asked, const std::string& host, Result<std::string> answer) {
  Awaited& awaited = asked.hosts.at(host);
  if (awaited.done) return;
  const std::size_t bytes = answer.ok() ? answer->size() : 0;
  if (answer.ok() && (bytes > kMaxAnswer || !count(asked, awaited, json_bytes(*answer)))) {
    answer = Status(Code::kResourceExhausted, fmt::format("its answer of {} bytes is too long", bytes), host,
                    "ask fewer hosts at once, or for less");
  }
  awaited.done = true;
  --asked.open;
  awaited.text = answer.ok() ? *std::move(answer) : std::string();
  if (answer.ok()) return;
  count(asked, awaited, 0);
  awaited.error = answer.status();
}

void Questions::finish(std::uint64_t number) {
  const auto found = asked_.find(number);
  Asked& asked = found->second;
  json answers = json::array();
  for (auto& [host, awaited] : asked.hosts) {
    if (host != host_) environment_.release(host);
    json one{{"host", host}};
    if (awaited.error.ok())
      one["text"] = std::move(awaited.text);
    else
      one["error"] = error_object(awaited.error);
    answers.push_back(std::move(one));
  }
  asked.done({{"host", host_}, {"answers", std::move(answers)}});
  Asker& asker = this->asker(asked.uid);
  --asker.open;
  asker.bytes -= asked.bytes;
  asked_.erase(found);
}

Status Questions::silence_of(const Asked& asked, const std::string& host) {
  const std::string time = fmt::format("{:.3g} s", to_seconds(asked.patience));
  if (host == host_) {
    return {Code::kTimedOut, fmt::format("the daemon of this host has not found the answer in {}", time), host,
            "allow more time (timeout_s), or see its log"};
  }
  if (!environment_.reachable(host)) {
    return {Code::kUnavailable, fmt::format("its daemon could not be reached in {}", time), host,
            fmt::format(
                "see whether tensorlaned runs there and is not stopped (systemctl status tensorlaned), and whether the "
                "network lets its control port through")};
  }
  return {Code::kTimedOut, fmt::format("its daemon has not answered in {}", time), host,
          "see whether it is stopped, short of CPU, or of another release (tensorlaned --version)"};
}

// ---- of other daemons ----

bool Questions::awaits(const std::string& from, std::uint64_t number) const {
  const auto asked = asked_.find(number);
  if (asked == asked_.end()) return false;
  const auto host = asked->second.hosts.find(from);
  return host != asked->second.hosts.end() && !host->second.done;
}

bool Questions::handle(const std::string& from, const Message& message, Time now) {
  return message.type == MessageType::kAsk ? take_question(from, message, now) : take_answer(from, message);
}

Questions::Caller& Questions::caller(const std::string& host, bool of_operator) {
  return callers_.try_emplace({host, of_operator}, Caller{0, TokenBucket(questions_in_a_second(kForeignRate))})
      .first->second;
}

bool Questions::take_question(const std::string& from, const Message& message, Time now) {
  ItemReader in(message.body);
  ports::Question question{in.u32(), from, false, {}, {}};
  const std::string kind = in.text(kMaxKind);
  question.args = in.raw_text(kMaxAskMessage);
  const Duration patience(static_cast<std::int64_t>(in.number(static_cast<std::uint64_t>(kMostPatience.value))));
  if (!in.done()) return false;
  const std::uint64_t number = message.job.value;
  question.jobs = environment_.jobs_shown(question.uid, from);
  Caller& caller = this->caller(from, question.of_operator());
  if (foreign_.contains({from, number})) return false;
  environment_.need(from);
  if (caller.open >= kMostForeign || caller.rate.empty(now)) {
    send_answer(
        from, number,
        Status(Code::kResourceExhausted,
               fmt::format("{} of host {} ask too much of it", question.of_operator() ? "operators" : "users", from),
               host_, fmt::format("ask less than {} at once and {} in a second", kMostForeign, kForeignRate)));
    environment_.release(from);
    return true;
  }
  caller.rate.take(now, Bytes(1));
  ++caller.open;
  foreign_[{from, number}] = {now + patience, question.of_operator()};
  answer_here(kind, question, on_control([this, from, number](const Result<std::string>& answer) {
                const auto open = foreign_.find({from, number});
                if (open == foreign_.end()) return;
                send_answer(from, number, answer);
                --this->caller(from, open->second.of_operator).open;
                foreign_.erase(open);
                environment_.release(from);
              }));
  return true;
}

void Questions::send_answer(const std::string& to, std::uint64_t number, const Result<std::string>& answer) {
  Status error;
  if (!answer.ok())
    error = answer.status();
  else if (answer->size() > kMaxAnswer)
    error = Status(Code::kResourceExhausted, fmt::format("its answer of {} bytes is too long", answer->size()), host_,
                   "ask for less");
  const std::string_view text = error.ok() ? std::string_view(*answer) : std::string_view();
  const auto parts = static_cast<std::uint32_t>(std::max<std::size_t>((text.size() + kPart - 1) / kPart, 1));
  for (std::uint32_t part = 0; part < parts; ++part) {
    const std::string_view piece = text.substr(part * kPart, kPart);
    Message message{MessageType::kAnswer, JobId(number), Epoch(0), 0, {}};
    message.body = json::array(
        {part, parts, status_to_json(error), json::binary(std::vector<std::uint8_t>(piece.begin(), piece.end()))});
    if (!environment_.send(to, message)) return;  // its question times out there
  }
}

bool Questions::take_answer(const std::string& from, const Message& message) {
  const auto found = asked_.find(message.job.value);
  if (found == asked_.end()) return false;
  ItemReader in(message.body);
  const std::uint32_t part = in.u32(), parts = in.u32();
  const Status error = status_from_json(in.array());
  const std::span<const std::uint8_t> piece = in.bytes_up_to(kPart);
  if (!in.done() || parts == 0 || parts > kMostParts || part >= parts) return false;
  Asked& asked = found->second;
  Awaited& awaited = asked.hosts.at(from);  // awaits() was asked
  if (!error.ok()) {
    settle(asked, from, error);
  } else if (part != awaited.parts || !count(asked, awaited, awaited.bytes + piece.size())) {
    settle(asked, from, Status(Code::kResourceExhausted, "its answer is too long, or not whole", from, "ask for less"));
  } else {
    awaited.text.append(piece.begin(), piece.end());
    if (++awaited.parts == parts) settle(asked, from, std::move(awaited.text));
  }
  if (asked.open == 0) finish(found->first);
  return true;
}

void Questions::hear_another_version(const std::string& from, const Status& why, bool asks, Time now) {
  std::vector<std::uint64_t> complete;
  for (auto& [number, asked] : asked_) {
    if (!awaits(from, number)) continue;
    settle(asked, from, Status(Code::kVersionMismatch, why.what(), from, why.fix()));
    if (asked.open == 0) complete.push_back(number);
  }
  for (const std::uint64_t number : complete) finish(number);
  TokenBucket& rate = caller(from, false).rate;
  if (!asks || rate.empty(now)) return;
  rate.take(now, Bytes(1));
  environment_.need(from);
  send_answer(from, 0, why);  // which it cannot read, but for the version
  environment_.release(from);
}

void Questions::tick(Time now) {
  std::vector<std::uint64_t> over;
  for (auto& [number, asked] : asked_) {
    if (now < asked.deadline) continue;
    over.push_back(number);
    for (auto& [host, awaited] : asked.hosts) {
      if (!awaited.done) settle(asked, host, silence_of(asked, host));
    }
  }
  for (const std::uint64_t number : over) finish(number);
  for (auto it = foreign_.begin(); it != foreign_.end();) {
    const bool late = now >= it->second.deadline;
    if (late) {
      --caller(it->first.first, it->second.of_operator).open;
      environment_.release(it->first.first);
    }
    it = late ? foreign_.erase(it) : std::next(it);
  }
}

}  // namespace tensorlane::control
