#include "daemon/control/questions.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace tensorlane::control {
namespace {

using nlohmann::json;

// Hosts whose messages are carried at once, or not at all, and lies that can be told in between.
class Net {
 public:
  struct Host final : QuestionEnvironment {
    Host(Net& n, std::string own, ports::Answerers answerers)
        : net(n), name(std::move(own)), questions(name, std::move(answerers), *this) {}
    void need(const std::string& host) override { ++needed[host]; }
    void release(const std::string& host) override { --needed[host]; }
    bool send(const std::string& host, const Message& message) override {
      if (full) return false;
      net.sent.emplace_back(name, host, message);
      return true;
    }
    bool reachable(const std::string& host) override { return !net.cut.contains(host); }
    void later(std::function<void()> what) override { what(); }
    void reply(ports::SessionId, std::uint32_t, std::string text) override { replies.push_back(json::parse(text)); }
    std::vector<std::string> hosts() const override { return {"a", "b", "c"}; }
    std::vector<JobId> jobs_shown(std::uint32_t uid, const std::string& from) const override {
      return {JobId(uid), JobId(from.size())};
    }
    Result<std::pair<std::uint64_t, std::vector<std::string>>> hosts_of_job(std::uint32_t uid,
                                                                            const std::string& text) const override {
      if (text == "train" && uid == 7) return std::pair<std::uint64_t, std::vector<std::string>>(42, {"a", "c"});
      return Status(Code::kNotFound, "no job '" + text + "'", name, "name one");
    }
    int open() const {
      int all = 0;
      for (const auto& [host, count] : needed) all += count;
      return all;
    }

    Net& net;
    const std::string name;
    bool full = false;
    std::map<std::string, int> needed;
    std::vector<json> replies;
    Questions questions;
  };

  Net() {
    for (const char* name : {"a", "b", "c"}) {
      const ports::Answerers answerers{
          {"who",
           [name](const ports::Question& q, const ports::Answered& done) {
             done(json{{"host", name},
                       {"uid", q.uid},
                       {"from", q.from},
                       {"here", q.here},
                       {"args", q.args},
                       {"sees", q.may_see(JobId(7))}}
                      .dump());
           }},
          {"later", [this](const ports::Question&, ports::Answered done) { waiting.push_back(std::move(done)); }},
          {"long", [](const ports::Question& q, const ports::Answered& done) {
             const json args = json::parse(q.args);
             done(std::string(args["bytes"].get<std::size_t>(), static_cast<char>(args.value("byte", 'x'))));
           }}};
      hosts.emplace(std::piecewise_construct, std::forward_as_tuple(name),
                    std::forward_as_tuple(*this, name, answerers));
    }
  }
  Host& at(const std::string& name) { return hosts.at(name); }
  // Carries what is sent until nothing is. What comes over the wire comes as bytes.
  void carry() {
    while (!sent.empty()) {
      const auto [from, to, message] = sent.front();
      sent.erase(sent.begin());
      if (cut.contains(to) || cut.contains(from)) continue;
      const auto bytes = encode(message);
      const auto again = control::decode(std::as_bytes(std::span(bytes)));
      ASSERT_TRUE(again.ok()) << again.status().to_string();
      if (again->type == MessageType::kAnswer && !at(to).questions.awaits(from, again->job.value)) continue;
      EXPECT_TRUE(at(to).questions.handle(from, *again, now));
    }
  }
  json ask(const json& question, std::uint32_t uid = 7) {
    Host& a = at("a");
    a.questions.ask(ports::SessionId(1), 1, uid, question.dump(), now);
    carry();
    now = now + seconds(4);
    for (auto& [name, host] : hosts) host.questions.tick(now);
    EXPECT_EQ(a.replies.size(), 1u);
    const json reply = a.replies.empty() ? json() : a.replies.back();
    a.replies.clear();
    for (auto& [name, host] : hosts) {
      EXPECT_TRUE(host.questions.idle()) << name;
      EXPECT_EQ(host.open(), 0) << name;
    }
    return reply;
  }

  Time now = Time(0) + seconds(100);
  std::vector<std::tuple<std::string, std::string, Message>> sent;
  std::set<std::string> cut;
  std::vector<ports::Answered> waiting;
  std::map<std::string, Host> hosts;
};

std::string error_of(const json& reply, std::size_t answer) {
  const json& one = reply["answers"][answer];
  return one.contains("error") ? one["error"]["what"].get<std::string>() : "answered: " + one["text"].dump();
}

TEST(Questions, GoToThisHostThoseOfAJobOrAll) {
  Net net;
  json reply = net.ask({{"kind", "who"}, {"args", {{"x", 1}}}});
  ASSERT_EQ(reply["answers"].size(), 1u);
  EXPECT_EQ(json::parse(reply["answers"][0]["text"].get<std::string>()),
            (json{{"host", "a"}, {"uid", 7}, {"from", "a"}, {"here", true}, {"args", "{\"x\":1}"}, {"sees", true}}));
  reply = net.ask({{"kind", "who"}, {"job", "train"}});
  ASSERT_EQ(reply["answers"].size(), 2u);
  EXPECT_EQ(reply["answers"][1]["host"], "c");
  EXPECT_EQ(
      json::parse(reply["answers"][1]["text"].get<std::string>()),
      (json{{"host", "c"}, {"uid", 7}, {"from", "a"}, {"here", false}, {"args", "{\"job_id\":42}"}, {"sees", true}}));
  EXPECT_EQ(net.ask({{"kind", "who"}, {"hosts", "all"}})["answers"].size(), 3u);
  EXPECT_EQ(net.ask({{"kind", "who"}, {"hosts", {"b", "b"}}})["answers"].size(), 1u);
}

TEST(Questions, BadOnesAreRefusedWithWhatIsWrong) {
  Net net;
  const auto refused = [&](const json& question) { return net.ask(question)["error"]["what"].get<std::string>(); };
  EXPECT_EQ(refused(json::array()), "it is no JSON object");
  EXPECT_EQ(refused({{"hosts", "all"}}), "it has no kind");
  EXPECT_EQ(refused({{"kind", "who"}, {"args", 3}}), "its args are no object");
  EXPECT_EQ(refused({{"kind", "who"}, {"timeout_s", 0}}), "timeout_s is no number of seconds");
  EXPECT_EQ(refused({{"kind", "who"}, {"timeout_s", 1e9}}), "timeout_s is no number of seconds");
  EXPECT_EQ(refused({{"kind", "who"}, {"hosts", {"a", "nosuch"}}}), "the fabric file has no host \"nosuch\"");
  EXPECT_EQ(refused({{"kind", "who"}, {"job", "other"}}), "no job 'other'");
  EXPECT_EQ(error_of(net.ask({{"kind", "what"}}), 0), "the daemon of host a answers no questions of kind 'what'");
}

TEST(Questions, HostsThatDoNotAnswerAreNamedAndOthersStillHeard) {
  Net net;
  net.cut = {"b"};
  json reply = net.ask({{"kind", "who"}, {"hosts", "all"}});
  EXPECT_EQ(error_of(reply, 1), "its daemon could not be reached in 3 s");
  EXPECT_TRUE(reply["answers"][0].contains("text"));
  EXPECT_TRUE(reply["answers"][2].contains("text"));
  net.cut.clear();
  reply = net.ask({{"kind", "later"}, {"hosts", {"a", "b"}}, {"timeout_s", 2}});
  EXPECT_EQ(error_of(reply, 0), "the daemon of this host has not found the answer in 2 s");
  EXPECT_EQ(error_of(reply, 1), "its daemon has not answered in 2 s");
  // Too late.
  for (const ports::Answered& done : net.waiting) done(std::string("late"));
  net.carry();
  EXPECT_TRUE(net.at("a").replies.empty());
  net.at("a").full = true;
  EXPECT_EQ(error_of(net.ask({{"kind", "who"}, {"hosts", {"b"}}}), 0), "too many messages wait for it");
}

TEST(Questions, LongAnswersComeWholeAndTooLongOnesNotAtAll) {
  Net net;
  const auto ask = [&](std::size_t bytes) {
    return net.ask({{"kind", "long"}, {"args", {{"bytes", bytes}}}, {"hosts", {"b"}}});
  };
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{262144}, std::size_t{262145}, kMaxAnswer})
    EXPECT_EQ(ask(bytes)["answers"][0]["text"].get<std::string>().size(), bytes);
  EXPECT_EQ(error_of(ask(kMaxAnswer + 1), 0), "its answer of 16777217 bytes is too long");
  // All together.
  const json reply = net.ask({{"kind", "long"}, {"args", {{"bytes", kMaxAnswer}}}, {"hosts", "all"}});
  int answered = 0;
  for (const json& one : reply["answers"]) answered += one.contains("text") ? 1 : 0;
  EXPECT_EQ(answered, 2);
  // What becomes six times as long as JSON.
  const json spoilt = net.ask({{"kind", "long"}, {"args", {{"bytes", 12u << 20}, {"byte", 1}}}, {"hosts", {"b"}}});
  EXPECT_EQ(error_of(spoilt, 0), "its answer of 12582912 bytes is too long");
}

TEST(Questions, AHostThatLiesSpoilsItsOwnAnswerOnly) {
  Net net;
  Net::Host& a = net.at("a");
  a.questions.ask(ports::SessionId(1), 1, 7, R"({"kind":"later","hosts":["b","c"]})", net.now);
  net.carry();
  const auto say = [&](const std::string& from, const json& body, std::uint64_t number = 1) {
    Message message{MessageType::kAnswer, JobId(number), Epoch(0), 0, body};
    return a.questions.awaits(from, number) && a.questions.handle(from, message, net.now);
  };
  const json fine = status_to_json({}), text = json::binary({'x'});
  EXPECT_FALSE(say("d", json::array({0, 1, fine, text})));     // nobody asked it
  EXPECT_FALSE(say("b", json::array({0, 1, fine, text}), 2));  // nor for that
  EXPECT_FALSE(say("b", json::array()));
  EXPECT_FALSE(say("b", json::array({0, 0, fine, text})));
  EXPECT_FALSE(say("b", json::array({0, 1u << 30, fine, text})));
  EXPECT_FALSE(say("b", json::array({0, 1, fine, "x"})));
  EXPECT_TRUE(say("b", json::array({1, 2, fine, text})));   // its second part first
  EXPECT_FALSE(say("b", json::array({0, 1, fine, text})));  // it has had its say
  EXPECT_TRUE(say("c", json::array({0, 1, fine, text})));
  ASSERT_EQ(a.replies.size(), 1u);
  EXPECT_EQ(error_of(a.replies[0], 0), "its answer is too long, or not whole");
  EXPECT_EQ(a.replies[0]["answers"][1]["text"], "x");
}

TEST(Questions, AnotherVersionIsNamedAndToldThisOneOnce) {
  Net net;
  Net::Host& a = net.at("a");
  const Status version(Code::kVersionMismatch, "control protocol version 11 is not 10", "", "update");
  a.questions.ask(ports::SessionId(1), 1, 7, R"({"kind":"later","hosts":["b"]})", net.now);
  net.sent.clear();
  a.questions.hear_another_version("b", version, false, net.now);
  ASSERT_EQ(a.replies.size(), 1u);
  EXPECT_EQ(error_of(a.replies[0], 0), "control protocol version 11 is not 10");
  EXPECT_TRUE(net.sent.empty());
  a.questions.hear_another_version("b", version, true, net.now);
  ASSERT_EQ(net.sent.size(), 1u);
  EXPECT_EQ(std::get<2>(net.sent[0]).type, MessageType::kAnswer);
  EXPECT_EQ(a.open(), 0);
}

TEST(Questions, OneHostMayNotAskTooMuchAndOthersStillMay) {
  Net net;
  const auto ask = [&](const std::string& from, std::uint64_t number, const char* kind, std::uint32_t uid = 7) {
    Message message{MessageType::kAsk, JobId(number), Epoch(0), 0, json::array({uid, kind, "{}", 1'000'000'000})};
    return net.at("c").questions.handle(from, message, net.now);
  };
  for (std::uint64_t n = 0; n < Questions::kMostForeign; ++n) EXPECT_TRUE(ask("a", n, "later"));
  EXPECT_TRUE(net.sent.empty());
  EXPECT_TRUE(ask("a", 1000, "who"));
  ASSERT_EQ(net.sent.size(), 1u);
  EXPECT_EQ(status_from_json(std::get<2>(net.sent[0]).body[2]).what(), "users of host a ask too much of it");
  EXPECT_TRUE(ask("b", 1, "who"));
  EXPECT_EQ(std::get<2>(net.sent[1]).body[2], status_to_json({}));
  EXPECT_FALSE(ask("a", 5, "later"));  // the number is in use
  net.now = net.now + seconds(2);
  net.at("c").questions.tick(net.now);
  EXPECT_TRUE(net.at("c").questions.idle());
  // So many at once that no second has room for them.
  std::size_t refused = 0;
  net.sent.clear();
  for (std::uint64_t n = 0; n < 3 * Questions::kForeignRate; ++n) ask("a", 2000 + n, "who");
  for (const auto& [from, to, message] : net.sent) refused += status_from_json(message.body[2]).ok() ? 0 : 1;
  EXPECT_GE(refused, 2 * Questions::kForeignRate);
  EXPECT_LT(refused, 3 * Questions::kForeignRate);
  // The host's root is answered all the same.
  net.sent.clear();
  ask("a", 9000, "who", 0);
  ASSERT_EQ(net.sent.size(), 1u);
  EXPECT_TRUE(status_from_json(std::get<2>(net.sent[0]).body[2]).ok());
}

// The sessions that asked may be gone: what a user leaves behind has a bound, and is nobody else's loss.
TEST(Questions, AUserHasAsManyOpenAsAllowedAndOthersHaveTheirs) {
  Net net;
  Questions& questions = net.at("a").questions;
  std::map<std::uint32_t, int> refused;
  net.cut.insert("b");
  const std::string question = R"({"kind":"who","hosts":["b"],"timeout_s":600})";
  for (std::uint32_t n = 0; n < 2 * Questions::kMostOpen; ++n) {
    net.at("a").replies.clear();
    questions.ask(ports::SessionId(n), n, 7, question, net.now);
    refused[7] += net.at("a").replies.empty() ? 0 : 1;
    net.now = net.now + milliseconds(50);
  }
  net.at("a").replies.clear();
  questions.ask(ports::SessionId(1), 1, 8, question, net.now);
  refused[8] += net.at("a").replies.empty() ? 0 : 1;
  EXPECT_EQ(refused[7], Questions::kMostOpen);
  EXPECT_EQ(refused[8], 0);
  net.now = net.now + seconds(601);
  questions.tick(net.now);
  net.at("a").replies.clear();
  questions.ask(ports::SessionId(1), 1, 7, question, net.now);
  EXPECT_TRUE(net.at("a").replies.empty());
}

// Of answers that come in turns, each part counts when it comes: of one user's questions none is whole here.
TEST(Questions, PartsOfManyAnswersHaveABoundTogether) {
  constexpr std::uint64_t kQuestions = 6;
  Net net;
  Net::Host& a = net.at("a");
  for (std::uint64_t n = 0; n < kQuestions; ++n)
    a.questions.ask(ports::SessionId(1), 1, 7, R"({"kind":"later","hosts":["b","c"]})", net.now);
  net.carry();
  const std::vector<std::uint8_t> part(std::size_t{256} << 10, 'x');
  std::size_t taken = 0, most = 0;
  for (std::uint32_t turn = 0; turn < 63; ++turn) {
    for (std::uint64_t number = 1; number <= kQuestions; ++number) {
      for (const char* from : {"b", "c"}) {
        if (!a.questions.awaits(from, number)) continue;
        const json body = json::array({turn, 64, status_to_json({}), json::binary(part)});
        ASSERT_TRUE(a.questions.handle(from, {MessageType::kAnswer, JobId(number), Epoch(0), 0, body}, net.now));
        taken += part.size();
        if (!a.questions.awaits(from, number)) taken -= (turn + 1) * part.size();  // that was one too many
        most = std::max(most, taken);
      }
    }
  }
  EXPECT_LE(most, Questions::kMostOpenBytes + part.size());
  EXPECT_GT(most, Questions::kMostOpenBytes / 2);
}

TEST(Questions, AnswersThatHaveBeenGivenCountNoMore) {
  constexpr std::size_t kBytes = std::size_t{12} << 20;
  Net net;
  for (std::size_t asked = 0; asked <= Questions::kMostOpenBytes; asked += kBytes) {
    const json reply = net.ask({{"kind", "long"}, {"args", {{"bytes", kBytes}}}});
    ASSERT_TRUE(reply["answers"][0].contains("text")) << error_of(reply, 0) << " after " << asked;
  }
}

TEST(Questions, AUserAsksSoOftenInASecondAndAnOperatorMoreOften) {
  Net net;
  for (const std::uint32_t uid : {7u, 0u}) {
    std::size_t refused = 0;
    for (std::size_t n = 0; n < 3 * Questions::kRate; ++n) {
      net.at("a").replies.clear();
      net.at("a").questions.ask(ports::SessionId(1), 1, uid, R"({"kind":"who","hosts":[]})", net.now);
      refused += net.at("a").replies.at(0).dump().find("you ask too much") == std::string::npos ? 0 : 1;
    }
    EXPECT_EQ(refused, uid == 0 ? 0 : 2 * Questions::kRate);
  }
}

TEST(Questions, AnswersAfterTheEndGoNowhere) {
  std::vector<ports::Answered> waiting;
  {
    Net net;
    net.at("a").questions.ask(ports::SessionId(1), 1, 7, R"({"kind":"later"})", net.now);
    waiting = net.waiting;
  }
  ASSERT_EQ(waiting.size(), 1u);
  waiting[0](std::string("late"));
}

TEST(Questions, ADaemonAsksAnotherOneItself) {
  Net net;
  std::vector<Result<std::string>> answers;
  const auto take = [&](Result<std::string> answer) { answers.push_back(std::move(answer)); };
  net.at("a").questions.ask_host("b", "who", {{"x", 1}}, seconds(1), take, net.now);
  net.carry();
  ASSERT_EQ(answers.size(), 1u);
  ASSERT_TRUE(answers[0].ok()) << answers[0].status().to_string();
  const json who = json::parse(*answers[0]);
  EXPECT_EQ(who["host"], "b");
  EXPECT_EQ(who["uid"], 0);
  EXPECT_EQ(who["args"], R"({"x":1})");
  net.cut.insert("c");
  net.at("a").questions.ask_host("c", "who", json::object(), seconds(1), take, net.now);
  net.carry();
  EXPECT_EQ(answers.size(), 1u);
  net.at("a").questions.tick(net.now + seconds(2));
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_NE(answers[1].status().what().find("could not be reached"), std::string::npos);
  EXPECT_TRUE(net.at("a").replies.empty());
  EXPECT_TRUE(net.at("a").questions.idle());
  EXPECT_EQ(net.at("a").open(), 0);
}

}  // namespace
}  // namespace tensorlane::control
