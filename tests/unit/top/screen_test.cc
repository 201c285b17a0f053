#include "monitor/top/screen.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/top/reports.h"

namespace tensorlane::top {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string all_of(const std::vector<Line>& lines) {
  std::string text;
  for (const Line& line : lines) text += text_of(line) + "\n";
  return text;
}

Picture picture_of(int hosts, bool of_job) {
  History history;
  history.add(round_of(hosts, 10, of_job));
  history.add(round_of(hosts, 12, of_job));
  return make_picture(history);
}

class ScreenTest : public testing::Test {
 protected:
  // What is shown in so many columns and lines, of which none is longer.
  std::string shown(std::size_t columns = 200, std::size_t height = 24) {
    const std::vector<Line> lines = screen.lines({columns, height}, 0);
    EXPECT_LE(lines.size(), height);
    for (const Line& line : lines) EXPECT_LE(columns_of(text_of(line)), columns) << text_of(line);
    return all_of(lines);
  }
  void keys(std::string_view characters) {
    for (const char c : characters) EXPECT_TRUE(screen.press({Key::kCharacter, c}));
  }
  void press(Key key) { EXPECT_TRUE(screen.press({key})); }
  // The row that is chosen; the line of the views has a chosen one, too.
  std::string chosen_row() {
    const std::vector<Line> lines = screen.lines({200, 24}, 0);
    for (std::size_t l = 2; l < lines.size(); ++l) {
      if (!lines[l].empty() && lines[l].front().tone == Tone::kSelected) return text_of(lines[l]);
    }
    return {};
  }

  Screen screen{"", true};
};

TEST_F(ScreenTest, NoLineIsWiderThanTheTerminalInAnyViewOrSize) {
  for (const bool of_job : {false, true}) {
    if (of_job) {
      shown();
      press(Key::kEnter);
    }
    screen.show(picture_of(6, of_job));
    for (const char view : {'1', '2', '3', '4', '5', '6', '?'}) {
      for (const std::size_t columns : {1, 5, 19, 20, 21, 40, 60, 80, 81, 120, 200, 300}) {
        for (const std::size_t height : {1, 2, 3, 4, 5, 6, 7, 8, 24, 70}) {
          keys(std::string(1, view));
          const std::string text = shown(columns, height);
          EXPECT_FALSE(text.empty());
        }
      }
    }
    keys("?");
    shown();
    keys("1");  // leaves the help, and
    keys("1");
  }
}

TEST_F(ScreenTest, ShowsWhatMattersAtEachWidth) {
  screen.show(picture_of(6, false));
  EXPECT_THAT(shown(20), HasSubstr("train"));
  EXPECT_THAT(shown(20), HasSubstr("1.10G"));
  EXPECT_THAT(shown(20), Not(HasSubstr("REMARK")));
  const std::string narrow = shown(80);
  for (const char* text : {"train", "100ms", "running", "1.10G", "40%", "evaluate", "waits for ranks 1, 3"})
    EXPECT_THAT(narrow, HasSubstr(text));
  const std::string wide = shown(200);
  for (const char* text : {"LEADER", "gpu00", "(another user's)", " 1000 ", " ID"}) EXPECT_THAT(wide, HasSubstr(text));
}

TEST_F(ScreenTest, EnterGoesIntoAJobAHostAndAClassAndBackspaceOut) {
  screen.show(picture_of(6, false));
  shown();
  EXPECT_THAT(chosen_row(), HasSubstr("train"));
  press(Key::kEnter);
  EXPECT_EQ(screen.job(), "42");
  EXPECT_THAT(shown(), HasSubstr("asking the hosts of the job"));
  screen.show(picture_of(6, true));
  EXPECT_THAT(shown(), HasSubstr("job train"));
  EXPECT_THAT(shown(), HasSubstr("1 of 6 hosts does not answer; running, iteration 100ms"));
  EXPECT_THAT(shown(), HasSubstr("gpu05 it has not answered in 1 s"));
  Picture all_answer = picture_of(6, true);
  all_answer.silent = 0;
  screen.show(all_answer);
  EXPECT_THAT(shown(20), HasSubstr("100ms, 10% exposed"));
  all_answer.exposed.reset();
  screen.show(all_answer);
  EXPECT_THAT(shown(20), HasSubstr("100ms, exposed ?"));
  EXPECT_THAT(shown(120), HasSubstr("iteration 100ms, exposed: not known (streams wait on the GPU)"));
  press(Key::kDown);
  const std::string host = chosen_row().substr(0, 5);
  press(Key::kEnter);
  EXPECT_THAT(shown(), HasSubstr("job train, host " + host));
  EXPECT_THAT(shown(), HasSubstr("5.0ms"));
  press(Key::kDown);
  press(Key::kEnter);
  EXPECT_THAT(shown(), HasSubstr("job train, host " + host + ", class "));
  EXPECT_THAT(shown(), HasSubstr("RTT"));
  press(Key::kBackspace);
  EXPECT_THAT(shown(), Not(HasSubstr(", class")));
  press(Key::kBackspace);
  EXPECT_EQ(chosen_row().substr(0, 5), host) << "the row that was entered is still the chosen one";
  press(Key::kBackspace);
  EXPECT_EQ(screen.job(), "");
  press(Key::kBackspace);
  EXPECT_EQ(screen.job(), "");
}

TEST_F(ScreenTest, ViewsOfAJobHaveItsFigures) {
  shown();
  screen.show(picture_of(6, false));
  shown();
  press(Key::kEnter);
  screen.show(picture_of(6, true));
  keys("2");
  EXPECT_THAT(shown(), HasSubstr("500M")) << "five hosts of 100 Mbit/s";
  keys("4");
  EXPECT_THAT(chosen_row(), HasSubstr("204us"));
  keys("5");
  EXPECT_THAT(chosen_row(), HasSubstr("12%"));
  keys("6");
  EXPECT_THAT(chosen_row(), HasSubstr("20ms"));
  EXPECT_THAT(chosen_row(), HasSubstr("gpu03"));
  press(Key::kTab);
  EXPECT_THAT(shown(), HasSubstr("JOB"));
  press(Key::kBackTab);
  EXPECT_THAT(shown(), HasSubstr("RANK"));
}

TEST_F(ScreenTest, WithoutAJobViewsAreOfTheDaemonsThatWereAsked) {
  screen.show(picture_of(6, false));
  keys("3");
  for (const char* text : {"gpu00", "0.1.0", "16.0M", "gpu05 it has not answered"})
    EXPECT_THAT(shown(), HasSubstr(text));
  keys("6");
  EXPECT_THAT(shown(), HasSubstr("choose a job first"));
}

// Of one table some figures are of this host alone and others of all hosts: each says whose.
TEST_F(ScreenTest, PlainTablesSayOfWhomTheirFiguresAre) {
  const auto printed = [](const Picture& picture) {
    std::string text;
    for (const std::string& line : plain_lines(picture, 120, 40, true)) text += line + "\n";
    return text;
  };
  const std::string of_job = printed(picture_of(6, true)), of_all = printed(picture_of(6, false));
  const std::string jobs = "\njobs (hosts, ranks and tensors of the whole job; other figures of host gpu00 alone)\n";
  for (const std::string& text : {of_job, of_all}) EXPECT_THAT(text, HasSubstr(jobs));
  for (const char* view : {"classes", "hosts", "peers", "ranks"})
    EXPECT_THAT(of_job, HasSubstr(std::string("\n") + view + " (job train, 5 of 6 hosts)\n"));
  EXPECT_THAT(of_job, HasSubstr("\nrails (job train, 5 of 6 hosts; OUT, IN and USE of whatever the NIC carries)\n"));
  for (const char* view : {"classes", "hosts"})
    EXPECT_THAT(of_all, HasSubstr(std::string("\n") + view + " (all jobs, 5 of 6 hosts)\n"));
  Picture one = picture_of(6, false);
  one.hosts = 1, one.silent = 0;
  EXPECT_THAT(printed(one), HasSubstr("\nclasses (all jobs, host gpu00 alone)\n"));
}

// A job by its name and a rank with its host, as soon as they are known.
TEST_F(ScreenTest, NamesJobsAndWhoIsLate) {
  History history;
  Answers answers = round_of(6, 10, false);
  answers.local["jobs"][0]["late"] = {{{"rank", 3}, {"host", "gpu01"}, {"what", "tensor 'w'"}}};
  history.add(std::move(answers));
  screen.show(make_picture(history));
  EXPECT_THAT(shown(), HasSubstr("late: rank 3 on host gpu01 with tensor 'w'"));
  press(Key::kEnter);
  EXPECT_EQ(screen.job(), "42");
  EXPECT_THAT(shown(), HasSubstr("asking the hosts of the job"));
  EXPECT_THAT(shown(), HasSubstr("job train"));
}

TEST_F(ScreenTest, SortsByTheColumnThatIsChosen) {
  shown();
  screen.show(picture_of(6, false));
  shown();
  press(Key::kEnter);
  screen.show(picture_of(6, true));
  keys("6");
  const std::string late = shown();
  EXPECT_THAT(late, HasSubstr("▼LAG"));
  keys("r");
  EXPECT_THAT(shown(), HasSubstr("▲LAG"));
  EXPECT_NE(shown(), late);
  keys("r<<");
  EXPECT_THAT(shown(), HasSubstr("▼RANK"));
  screen.press({Key::kHome});
  EXPECT_THAT(chosen_row(), HasSubstr("     9 "));
  keys("r");
  screen.press({Key::kHome});
  EXPECT_THAT(chosen_row(), HasSubstr("     0 "));
  keys("G");
  EXPECT_THAT(chosen_row(), HasSubstr("     9 "));
}

TEST_F(ScreenTest, KeepsTheChosenRowInSight) {
  shown();
  screen.show(picture_of(6, false));
  shown();
  press(Key::kEnter);
  screen.show(picture_of(100, true));
  shown(80, 10);
  for (int i = 0; i < 50; ++i) press(Key::kDown);
  std::string chosen;
  for (const Line& line : screen.lines({80, 10}, 0)) {
    if (line.size() > 3 && line[0].tone == Tone::kSelected) chosen = line[0].text;
  }
  EXPECT_FALSE(chosen.empty());
  press(Key::kPageUp);
  EXPECT_THAT(shown(80, 10), HasSubstr("gpu"));
  screen.show(picture_of(3, true));  // most hosts are gone
  EXPECT_THAT(shown(80, 10), HasSubstr("gpu00"));
}

TEST_F(ScreenTest, SaysWhatIsWrong) {
  EXPECT_THAT(shown(), HasSubstr("asking the daemon"));
  Picture none;
  none.error = "no daemon answers: Connection refused: /run/tensorlane/tensorlaned.sock: start it";
  screen.show(none);
  EXPECT_THAT(shown(80), HasSubstr("no daemon answers: Connection refused"));
  EXPECT_THAT(shown(20), HasSubstr("no daemon answers:"));
  EXPECT_THAT(all_of(screen.lines({80, 24}, 12)), HasSubstr("no answer for 12 s"));
  keys(" ");
  EXPECT_TRUE(screen.paused());
  EXPECT_THAT(shown(80), HasSubstr("paused"));
  Screen of_job("gone", true);
  Picture picture = picture_of(3, false);
  picture.asked = "gone";
  picture.no_job = "no job 'gone' of yours is on this host";
  of_job.show(picture);
  EXPECT_THAT(all_of(of_job.lines({80, 24}, 0)), HasSubstr("no job 'gone'"));
}

TEST_F(ScreenTest, QuitsAndHelps) {
  screen.show(picture_of(3, false));
  keys("?");
  EXPECT_THAT(shown(), HasSubstr("into a job, a host, a class"));
  EXPECT_THAT(shown(20), HasSubstr("Backspace"));
  EXPECT_THAT(shown(20, 8), HasSubstr("keys of"));
  for (int i = 0; i < 100; ++i) press(Key::kDown);
  EXPECT_THAT(shown(20, 8), HasSubstr("ID: its number"));
  keys("x");
  EXPECT_THAT(shown(), HasSubstr("JOB"));
  EXPECT_FALSE(screen.press({Key::kCharacter, 'q'}));
}

TEST_F(ScreenTest, HostileAnswersBreakNothing) {
  const std::string hostile =
      std::string("\x1b]0;owned\x07\x1b[2J") + "\xe2\x80\xae" + std::string(5000, 'x') + "\nend";
  const nlohmann::json kinds[] = {nullptr,
                                  1,
                                  -1.5,
                                  1e308,
                                  true,
                                  "text",
                                  hostile,
                                  nlohmann::json::array({1, "a", nullptr}),
                                  nlohmann::json::object({{"name", 3}, {"host", nullptr}})};
  for (const bool of_job : {false, true}) {
    for (const nlohmann::json& kind : kinds) {
      for (const char* key :
           {"jobs", "lane", "host", "ranks", "classes", "connections", "rails", "lanes", "at_ns", "iterations"}) {
        History history;
        for (const double at : {10.0, 12.0}) {
          Answers answers = round_of(4, at, of_job);
          answers.local[key] = kind;
          for (auto& [host, status] : answers.statuses) status[key] = kind;
          for (auto& [host, report] : answers.reports) report[key] = kind;
          for (auto& [id, report] : answers.jobs) report[key] = kind;
          for (const char* list : {"jobs"}) {
            if (!answers.local[list].is_array()) continue;
            for (nlohmann::json& job : answers.local[list]) {
              if (job.is_object()) job["name"] = hostile, job["hosts"] = kind, job["late"] = kind, job["error"] = kind;
            }
          }
          answers.silent[hostile] = hostile;
          history.add(std::move(answers));
        }
        screen.show(make_picture(history));
        for (const char view : {'1', '2', '3', '4', '5', '6'}) {
          keys(std::string(1, view));
          for (const std::size_t columns : {20, 80, 300}) {
            const std::string text = shown(columns);
            EXPECT_EQ(text.find('\x1b'), text.npos);
            EXPECT_EQ(text.find("\xe2\x80\xae"), text.npos);
          }
          press(Key::kEnter);
          shown(80);
          press(Key::kBackspace);
        }
        for (const std::string& line : plain_lines(make_picture(history), 100, 20, false)) {
          EXPECT_LE(line.size(), 100u);
          EXPECT_EQ(line.find('\x1b'), line.npos);
        }
      }
    }
  }
}

TEST(Pictures, RatesComeFromTwoAnswersOfAHost) {
  History history;
  history.add(round_of(4, 10, true));
  Picture first = make_picture(history);
  EXPECT_EQ(to_json(first)["hosts"][0]["sent_bits_per_second"], nullptr);
  Answers missed = round_of(4, 12, true);
  missed.reports.erase("gpu01");
  missed.silent["gpu01"] = "silent";
  history.add(missed);
  history.add(round_of(4, 14, true));
  const nlohmann::json all = to_json(make_picture(history));
  ASSERT_EQ(all["hosts"].size(), 4u);
  for (const int h : {0, 1, 2}) EXPECT_NEAR(all["hosts"][h]["sent_bits_per_second"], 1.1e9, 1e6) << all["hosts"][h];
  EXPECT_EQ(all["hosts_without_answer"], 1);
  EXPECT_NEAR(all["iteration_s"], 0.1, 1e-9);
  EXPECT_EQ(all["ranks"].size(), 6u);
}

// RDMA passes by the counts of the NIC.
TEST(Pictures, TheUseOfALinkIsWhatTheDaemonSendsWhereTheNicDoesNotCountIt) {
  History history;
  for (const int seconds : {10, 12}) {
    Answers answers = round_of(2, seconds, true);
    for (const char* key : {"nic_sent_bytes", "nic_received_bytes"}) answers.reports["gpu00"]["rails"][0][key] = 0;
    history.add(std::move(answers));
  }
  const nlohmann::json shown = to_json(make_picture(history));
  EXPECT_NEAR(shown["rails"][0]["use"].get<double>(), 137.5e6 * 8 * 1.08 / 10e9, 1e-6);
}

// Of its ranks one waits by streams: how long it waits is not known, and so nothing is said of the job.
TEST(Pictures, WhatIsExposedIsNotKnownWhereStreamsWait) {
  History history;
  for (const int seconds : {10, 12}) {
    Answers answers = round_of(4, seconds, true);
    for (nlohmann::json* report : {&answers.reports["gpu00"], &answers.jobs["42"]})
      (*report)["ranks"][1]["stream_waits"] = 100 * seconds;
    history.add(std::move(answers));
  }
  const nlohmann::json shown = to_json(make_picture(history));
  EXPECT_TRUE(shown["exposed_share"].is_null());
  EXPECT_TRUE(shown["jobs"][0]["exposed_share"].is_null());
  EXPECT_FALSE(shown["jobs"][0]["iteration_s"].is_null());
  for (const nlohmann::json& rank : shown["ranks"]) {
    const bool known = rank["rank"] != 1;
    EXPECT_EQ(rank["blocked_share"].is_number(), known) << rank;
    EXPECT_EQ(rank["computing_s"].is_number(), known) << rank;
  }
  for (const nlohmann::json& host : shown["hosts"]) {
    const bool silent = host["host"] == "gpu03";
    EXPECT_EQ(host["blocked_share"].is_number(), !silent && host["host"] != "gpu00") << host;
  }
}

TEST(Pictures, ADaemonThatStartedAgainIsNamedAndNoRateIsMadeUp) {
  History history;
  history.add(round_of(4, 10, true));
  Answers again = round_of(4, 12, true);
  again.reports["gpu01"] = report_of("gpu01", 1, 1);
  history.add(again);
  const nlohmann::json hosts = to_json(make_picture(history))["hosts"];
  const auto found = std::ranges::find_if(hosts, [](const auto& host) { return host["host"] == "gpu01"; });
  EXPECT_THAT((*found)["error"].get<std::string>(), HasSubstr("has shrunk"));
  EXPECT_EQ((*found)["sent_bits_per_second"], nullptr);
}

TEST(Pictures, OfDaemonsOneThatStartedAgainHasNoRateEither) {
  History history;
  history.add(round_of(4, 10, false));
  Answers again = round_of(4, 12, false);
  again.statuses["gpu01"] = status_of("gpu01", 4, 1);
  history.add(again);
  const nlohmann::json hosts = to_json(make_picture(history))["hosts"];
  ASSERT_EQ(hosts.size(), 4u);
  for (const auto& host : hosts) {
    if (host["host"] == "gpu03") continue;  // which is silent
    if (host["host"] == "gpu01") {
      EXPECT_EQ(host["sent_bits_per_second"], nullptr);
      EXPECT_EQ(host["lane_cpu_share"], nullptr);
    } else {
      EXPECT_NEAR(host["sent_bits_per_second"], 2 * 8e6, 1) << host;
      EXPECT_NEAR(host["lane_cpu_share"], 0.5, 1e-9) << host;
    }
  }
}

// One answers a second later than the others, and so a moment later the next time.
TEST(Pictures, RatesOfADaemonAreByItsOwnTime) {
  History history;
  for (const auto& [round, late] : {std::pair(10, 0.0), std::pair(11, 0.99), std::pair(12, 0.01)}) {
    Answers answers = round_of(4, round, false);
    answers.statuses["gpu01"] = status_of("gpu01", 4, round + late);
    history.add(answers);
    if (round == 10) continue;
    const nlohmann::json hosts = to_json(make_picture(history))["hosts"];
    for (const auto& host : hosts) {
      if (host["host"] == "gpu03") continue;  // which is silent
      EXPECT_NEAR(host["sent_bits_per_second"], 2 * 8e6, 1) << host;
      EXPECT_NEAR(host["lane_cpu_share"], 0.5, 1e-9) << host;
    }
  }
}

// Of two hosts: one has three times as many operations, which wait five times as long.
TEST(Pictures, TheMeanOfAClassCountsAHostByItsOperations) {
  History history;
  for (const double at : {10.0, 12.0}) {
    Answers answers = round_of(3, at, true);
    for (nlohmann::json& cls : answers.reports["gpu01"]["classes"])
      cls["operations"] = cls["operations"].get<int>() * 3, cls["queue_ns"] = cls["queue_ns"].get<std::int64_t>() * 5;
    history.add(answers);
  }
  const nlohmann::json classes = to_json(make_picture(history))["classes"];
  ASSERT_EQ(classes.size(), 2u);
  for (const nlohmann::json& cls : classes) {
    EXPECT_NEAR(cls["queue_s"], (1 * 1e-3 + 3 * 5e-3) / 4, 1e-9) << cls;
    EXPECT_NEAR(cls["operations_per_second"], 120, 1e-6) << cls;
  }
}

TEST(Pictures, AThousandHostsAreOnOne) {
  const Picture picture = picture_of(1024, true);
  EXPECT_EQ(picture.hosts, 1024u);
  EXPECT_EQ(picture.silent, 1u);
  EXPECT_EQ(picture.tables[static_cast<std::size_t>(View::kRanks)].rows.size(), 2046u);
  EXPECT_LE(plain_lines(picture, 120, 40, true).size(), 300u);
}

}  // namespace
}  // namespace tensorlane::top
