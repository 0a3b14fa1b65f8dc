"""What the tests share: programs, random schedules, comparisons and the campaigns; a folder for each room that they are about."""
